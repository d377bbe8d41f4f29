"""Steps of the loop → the pieces of an answer and its reply, for threads and event loops.

An answer is four classes: `AnswerOptions`, what was asked for; `AnswerRecord`, what becomes of
it; `AnswerRun`, which the engine's thread has while it produces; `Answer`, its reader's.
"""
