"""The page's style sheet: one measure, one accent, light and dark."""

CSS = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --wash: #f5f6f8; --ink: #1b1f24; --muted: #5b6570; --rule: #d9dde3;
  --blue: #0068a8; --orange: #cf5300; --green: #00805c;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  --mono: ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #12161b; --wash: #1a2027; --ink: #e7eaee; --muted: #9aa5b1; --rule: #2f3741;
    --blue: #5cb3ee; --orange: #f59255; --green: #45c9a0;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.55 var(--sans); }
main { max-width: 64rem; margin: 0 auto; padding: 2.5rem 1.25rem 4rem; }
h1, h2, h3, h4 { line-height: 1.2; margin: 0; text-wrap: balance; }
h1 { font-size: 1rem; font-weight: 600; color: var(--muted); }
h2 { font-size: 1.5rem; letter-spacing: -0.01em; margin: 3.5rem 0 0.75rem; }
h3 { font-size: 1.3rem; letter-spacing: -0.01em; }
h4 { font-size: 1rem; margin: 1.75rem 0 0.4rem; }
p, ul, dl { margin: 0.5rem 0; max-width: 44rem; }
a { color: var(--blue); text-decoration-thickness: 1px; text-underline-offset: 0.15em; }
:focus-visible { outline: 2px solid var(--blue); outline-offset: 2px; }
.finding { font-size: clamp(1.45rem, 1rem + 2vw, 2.1rem); line-height: 1.22; letter-spacing: -0.015em; font-weight: 650;
  margin: 0.6rem 0 0.9rem; max-width: 48rem; text-wrap: balance; }
.lead { font-size: 1.06rem; color: var(--muted); }
.small, figcaption, .meta { font-size: 0.86rem; color: var(--muted); }
.meta { margin-top: 0.75rem; }
figure { margin: 0; min-width: 0; }
figcaption { max-width: 44rem; line-height: 1.45; }
figcaption strong { display: block; color: var(--ink); font-size: 0.98rem; font-weight: 600; margin-bottom: 0.1rem; }
svg.figure { display: block; width: 100%; height: auto; overflow: visible; }
svg.figure text { font-family: var(--sans); font-variant-numeric: tabular-nums; }
.overview { margin: 2rem 0 0; }
.overview figcaption { margin-bottom: 0.75rem; }
.narrow { display: none; }
@media (max-width: 640px) { .wide { display: none; } .narrow { display: block; max-width: 26rem; }
  main { padding-top: 1.5rem; } }
.panels { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 2rem 2.5rem;
  margin: 1.5rem 0; }
.panels figure { display: flex; flex-direction: column; justify-content: space-between; gap: 0.6rem; max-width: 29rem; }
.scroll { overflow-x: auto; margin: 0.75rem 0 0.5rem;
  background: linear-gradient(to left, var(--paper) 40%, transparent) right / 3rem 100% no-repeat local,
    linear-gradient(to left, var(--rule), transparent) right / 0.8rem 100% no-repeat scroll; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
.results { width: 100%; }
th, td { padding: 0.42rem 0.6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--rule); }
thead th { vertical-align: bottom; font-weight: 500; font-size: 0.8rem; color: var(--muted); line-height: 1.25;
  border-bottom-color: var(--muted); }
.results thead th { white-space: normal; }
th.text, td.text { text-align: left; }
tbody th { font-weight: 500; }
th:first-child, td:first-child { padding-left: 0; }
th:last-child, td:last-child { padding-right: 0; }
.results th:first-child { position: sticky; left: 0; background: var(--paper); }
.results tbody th { overflow-wrap: anywhere; white-space: normal; min-width: 7.5rem; max-width: 16rem; }
td.key { color: var(--blue); font-weight: 650; }
td.proven { color: var(--green); }
abbr[title] { text-decoration: underline dotted var(--muted) 1px; text-underline-offset: 0.2em; cursor: help; }
.guide { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 20rem), 1fr)); gap: 0.25rem 2.5rem; }
.guide h3 { font-size: 1rem; margin-top: 1.1rem; letter-spacing: 0; }
.guide p { margin: 0.25rem 0; font-size: 0.94rem; }
.method { border-top: 1px solid var(--rule); padding-top: 1.5rem; margin-top: 2.5rem; }
.method header { display: flex; flex-wrap: wrap; align-items: baseline; justify-content: space-between;
  gap: 0.25rem 1.5rem; }
.method h3 { overflow-wrap: anywhere; }
.value { font-size: 1.7rem; font-weight: 650; letter-spacing: -0.01em; color: var(--blue);
  font-variant-numeric: tabular-nums;
  white-space: nowrap; }
.notes { padding-left: 1.1rem; }
.notes li { margin: 0.2rem 0; }
.warn, .proof, .note { border-left: 3px solid var(--orange); padding-left: 0.8rem; }
.proof { border-color: var(--green); }
.note { border-color: var(--rule); }
.status { font-size: 0.8rem; color: var(--muted); }
.status.preregistered { color: var(--ink); }
.columns { display: grid; gap: 0 2.5rem; align-items: start; }
.columns > div { min-width: 0; }
.columns td.small { white-space: normal; }
@media (min-width: 60rem) { .columns { grid-template-columns: minmax(0, 1.35fr) minmax(0, 1fr); } }
details { margin: 0.75rem 0; }
summary { cursor: pointer; font-weight: 500; }
dl.pairs { display: grid; grid-template-columns: minmax(8rem, max-content) minmax(0, 1fr); gap: 0.15rem 1.25rem;
  font-size: 0.86rem; max-width: none; }
dl.pairs dt { color: var(--muted); overflow-wrap: anywhere; }
dl.pairs dd { margin: 0; overflow-wrap: anywhere; }
sup { line-height: 0; font-size: 0.72em; }
code { font: 0.92em var(--mono); overflow-wrap: anywhere; }
@media (max-width: 640px) { dl.pairs { grid-template-columns: 1fr; } dl.pairs dd { margin-bottom: 0.4rem; } }
@media print { main { max-width: none; padding: 0; } .panels figure, tr { break-inside: avoid; }
  details > * { display: block; } }
"""

PICTURES = """
:root { --red: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --red: #ff8d85; } }
.right { color: var(--green); font-weight: 600; }
.wrong { color: var(--red); font-weight: 600; }
.case .back { color: var(--orange); font-weight: 600; }
.cases { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 13.5rem), 1fr)); gap: 1.5rem 1.75rem;
  margin: 0.75rem 0 1.5rem; }
.case figcaption { margin-bottom: 0.35rem; }
.triple { display: grid; grid-template-columns: repeat(3, 1fr); gap: 0.35rem; max-width: 17rem; }
.triple img { display: block; width: 100%; image-rendering: pixelated; border: 1px solid var(--rule); }
.triple span { display: block; font-size: 0.75rem; color: var(--muted); line-height: 1.3; margin-top: 0.15rem; }
.broad { grid-template-columns: repeat(auto-fill, minmax(min(100%, 27rem), 1fr)); }
.strip { display: grid; grid-template-columns: repeat(auto-fit, minmax(3.5rem, 1fr)); gap: 0.35rem; max-width: 34rem; }
.strip img { display: block; width: 100%; image-rendering: pixelated; border: 1px solid var(--rule); }
.strip span { display: block; font-size: 0.75rem; color: var(--muted); line-height: 1.3; margin-top: 0.15rem; }
.broad .case dl { grid-template-columns: minmax(0, max-content) 1fr; }
.case dl { display: grid; grid-template-columns: minmax(0, max-content) max-content; gap: 0 0.75rem; font-size: 0.8rem;
  margin: 0.3rem 0 0; font-variant-numeric: tabular-nums; }
.case dt { color: var(--muted); overflow-wrap: anywhere; }
.case dd { margin: 0; }
.metrics { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); gap: 1.75rem 2.5rem;
  align-items: start; }
.metrics > div { min-width: 0; }
.metrics > .wide { grid-column: 1 / -1; }
.metrics thead th, .dense thead th { white-space: normal; }
.metrics h3 { font-size: 1rem; letter-spacing: 0; }
.metrics td { line-height: 1.3; }
.metrics td .small, .dense td .small { font-size: 0.78rem; }
.dense { font-size: 0.85rem; line-height: 1.35; }
.dense th:not(:first-child), .dense td { padding-left: 0.4rem; padding-right: 0.4rem; }
.dense tr > :last-child { padding-right: 0; }
.dense tbody th.text { min-width: 5rem; }
@media print, (max-width: 640px) { .dense .sd { display: block; color: var(--muted); } }
@media print { .scroll { overflow: visible; background: none; } .dense { font-size: 0.78rem; } }
.value .small { font-weight: 400; letter-spacing: 0; }
.results thead tr:first-child th.group { text-align: center; }
tr.reference th, tr.reference td { color: var(--green); }
td .small { display: block; }
@media (max-width: 640px) { .metrics table { font-size: 0.78rem; } .metrics th, .metrics td { padding: 0.3rem 0.3rem; }
  .metrics td .small { font-size: 0.92em; } .case { max-width: 18rem; } }
@media print { .case, .metrics > div { break-inside: avoid; } .triple img { print-color-adjust: exact; } }
"""
