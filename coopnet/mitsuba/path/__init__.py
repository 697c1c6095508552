"""Paths on which networks are evaluated outside virtual calls.

========================  ================================================================
:mod:`.loop`              the loop over bounces, and its derivative by path replay
:mod:`.scene_decoders`    the networks of a scene's materials, for the lanes that need them
:mod:`.vertex`            arithmetic at one vertex
========================  ================================================================
"""
