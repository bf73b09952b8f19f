"""Stable Diffusion 1.x's parts, at its size and at that of small digits: text encoder, U-Net and autoencoder.

The modules are those of transformers and diffusers. Parameters' paths, joined by dots, are their torch names; matrices are
stored [in, out] and kernels [kh, kw, in, out].
"""
