"""
Learning an image
=================

A field that takes a position in the unit square and returns a color.
"""

import drjit as dr
import matplotlib.pyplot as plt
import numpy as np
from drjit.auto.ad import Float

import coopnet as cn

field = cn.NeuralField(cn.Sinusoidal(6, in_features=2), cn.MLP(out_features=1, width=32, depth=2)).build()


def batch(key):
    x, y = cn.uniform(2, key, Float, 1 << 12)
    return [x, y], [0.5 + 0.5 * dr.sin(20 * x * y)]


result = cn.fit(field, batch, steps=300, lr=1e-2, progress=False)
y, x = np.meshgrid(*[(np.arange(128, dtype=np.float32) + 0.5) / 128] * 2, indexing="ij")
(value,) = field([Float(x.ravel()), Float(y.ravel())])
plt.imshow(value.numpy().reshape(128, 128))
plt.show()
