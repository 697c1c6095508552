"""Fields as web pages: one file that draws an image or a surface, by WebGPU or WebGL 2, and loads no others.

================  =============================================
:mod:`.document`  the page, from templates, shaders and weights
================  =============================================
"""
