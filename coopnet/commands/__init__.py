"""The commands of ``coopnet``, one per file, and what they share: checks of arguments, words for errors."""
