"""Mutation testing: which single-line changes of coopnet would no test notice?"""
