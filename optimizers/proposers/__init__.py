"""Proposers that ask a language model: `anthropic`, `openai` (any compatible server) and `command` (any agent CLI).

They share the tools (`tools`), the loop with its caps and its journal (`conversation`), and what the model is told
(`briefing`, ``skill.md``). The one without a model is `optimizers.proposers.offline.proposer`.
"""
