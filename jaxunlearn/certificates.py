"""What theory proves."""
import numpy as np
from scipy.special import log_ndtr

def noisy_steps(epsilon, delta, *, clip_initial, clip, sigma, sigma_initial=0.0):
    """temp"""
    def ltheta(e, r):
        a=log_ndtr(-(e/r-r/2)); b=e+log_ndtr(-(e/r+r/2))
        return a+np.log1p(-np.exp(min(b-a,-1e-300)))
    ld=0.0; t=0
    while ld>np.log(delta):
        e=np.logaddexp(0,np.log(np.expm1(epsilon)) - ld) if epsilon<500 else epsilon-ld
        ld=ld+ltheta(e,2*clip/sigma); t+=1
        if t>10**6: raise ValueError
    return t
