"""Compiled programs that look at language models and ask them, one for all methods."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxunlearn.attack.quantisation import quantise
from jaxunlearn.attack.signals import answer_score, answered
from jaxunlearn.metrics import association
from jaxunlearn.pipeline.privacy.study import Study
from jaxunlearn.sequences import IGNORED, scored, token_nll
from jaxunlearn.types import Params

Arrays = dict[str, np.ndarray]

BLOCK = 32
"""Rows that go through a model at once."""
ASKED = 128
"""Prompts that are answered at once."""


def in_blocks(fn, size: int, *arrays):
    """``fn`` of [b, ...] arrays over their first axis, ``size`` rows at a time; the last block is filled up."""
    n = arrays[0].shape[0]
    size = min(size, n)
    blocks = -(-n // size)
    rows = np.minimum(np.arange(blocks * size), n - 1).reshape(blocks, size)
    found = lax.map(lambda at: fn(*(jnp.asarray(a)[at] for a in arrays)), jnp.asarray(rows))
    return jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:])[:n], found)


class Measurements:
    """What is asked of every model of a chunk at once."""

    def __init__(self, study: Study):
        self.study = study
        language, words = study.language, study.words
        engine = study.asking()
        assert language.generate is not None  # both families can
        generator = language.generate
        facts = words.facts
        self._private = np.where(facts.pii, facts.tokens[:, 0], IGNORED)
        told = np.where(words.told.pii, words.told.tokens, IGNORED)

        def private(params, tokens, labels):
            """Of each row: log p of its private tokens, how many there are, and whether greedy reading gets all right."""
            logits = language.logits(params, tokens)
            return {"log_p": answer_score(logits, labels), "read": answered(logits, labels) > 0}

        def of_facts(params, tokens, labels):
            return in_blocks(partial(private, params), BLOCK, tokens, labels)

        def text_nll(params, rows):
            sums = in_blocks(lambda x: token_nll(language.logits(params, x), x).sum(axis=1), BLOCK, rows)
            return jnp.sum(sums) / scored(rows).sum()

        def look(examples, shared, params):
            tokens, labels, told_tokens, told_labels, held_out = shared
            found = of_facts(params, tokens, labels) | {"text_nll": text_nll(params, held_out)}
            if told_tokens.shape[0]:
                found["told"] = of_facts(params, told_tokens, told_labels)["read"]
            return found

        def glance(examples, shared, params, known):
            tokens, labels, held_out = shared
            read = of_facts(params, tokens, labels)["read"]
            return {
                "p1_known": jnp.sum(read * known) / jnp.sum(known),
                "p1_unknown": jnp.sum(read * ~known) / jnp.maximum(jnp.sum(~known), 1),
                "text_nll": text_nll(params, held_out),
            }

        def states(examples, shared, params):
            return association.mean_states(language, params, *shared, chunk=BLOCK)

        def answer(examples, shared, params, bits=None):
            params = params if bits is None else quantise(params, bits, language.block_of(params))
            generate = partial(generator, params, new_tokens=study.config.new_tokens, stop=(words.tokenizer.eos,))
            return in_blocks(generate, ASKED, *shared)

        def choose(examples, shared, params):
            return of_facts(params, *shared)["log_p"]

        def associate(examples, shared, params, known):
            tokens, labels = shared
            losses = association.token_losses(language)
            rows = (tokens, labels)
            # The mean over the known alone: the others' losses weigh nothing.
            share = known / jnp.sum(known)
            direction = association.mean_gradient(
                lambda p, part: losses(p, part[:2]) * part[2] * len(known), params, (*rows, share), chunk=BLOCK
            )
            everyone = association.mean_gradient(losses, params, rows, chunk=BLOCK)
            return {
                "known": association.association(losses, params, rows, direction, chunk=BLOCK),
                "all": association.association(losses, params, rows, everyone, chunk=BLOCK),
            }

        tokens, forgotten = facts.tokens[:, 0], study.forgotten
        ours = (tokens[forgotten], self._private[forgotten])
        self._look = engine.map(look, (tokens, self._private, words.told.tokens, told, words.held_out))
        self._glance = engine.map(glance, (*ours, words.held_out))
        self._states = engine.map(states, (tokens[: study.control.start], self._private[: study.control.start]))
        self._answer = engine.map(answer, words.prompts)
        self._rounded = {b: engine.map(partial(answer, bits=b), words.prompts) for b in study.config.bits}
        self._associate = engine.map(associate, ours)
        self._choices: Any = None
        if study.config.choices is not None:
            self._choices = engine.map(choose, study.choices)
        self._engine, self._asking = engine, answer
        self._shown: Any = None

    def show(self, prompts: tuple[np.ndarray, np.ndarray]) -> None:
        """Says what P2 asks."""
        self._shown = self._engine.map(self._asking, prompts)

    def look(self, params: Params, count: int) -> Arrays:
        """log_p and read [r, F] of the private tokens, told [r, p], text_nll [r], of ``count`` models."""
        return _host(self._look(params), count)

    def glance(self, params: Params, known: np.ndarray, count: int) -> Arrays:
        """p1_known, p1_unknown and text_nll [r], by reading with the true answer at hand: quick.

        It says what asking would, where an answer is private throughout and no longer than what is generated.
        """
        return _host(self._glance(params, _each(params, known)), count)

    def states(self, params: Params, count: int) -> np.ndarray:
        """[r, L + 1, F', d] mean states over private tokens of all facts but the control's."""
        return np.asarray(self._states(params))[:count]

    def answers(self, params: Params, count: int) -> np.ndarray:
        """P1: [r, F, new] ids of greedy answers to direct questions."""
        return np.asarray(self._answer(params))[:count]

    def shown(self, params: Params, count: int) -> np.ndarray:
        """P2: the same after demonstrations."""
        return np.asarray(self._shown(params))[:count]

    def rounded(self, params: Params, bits: int, count: int) -> np.ndarray:
        """Direct questions to rounded weights."""
        return np.asarray(self._rounded[bits](params))[:count]

    def choices(self, params: Params, count: int) -> np.ndarray:
        """[r, q] log p of each choice of the multiple-choice questions, in nats."""
        return np.asarray(self._choices(params))[:count]

    def associate(self, params: Params, known: np.ndarray, count: int) -> Arrays:
        """[r, nf] associations of facts to be forgotten with the mean gradient of the known ones, and of all."""
        return _host(self._associate(params, _each(params, known)), count)


def _each(params: Params, row: np.ndarray) -> np.ndarray:
    """The same row for every model."""
    return np.tile(row, (jax.tree.leaves(params)[0].shape[0], 1))


def _host(found: Any, count: int) -> Arrays:
    return {name: np.asarray(value)[:count] for name, value in found.items()}
