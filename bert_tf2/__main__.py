"""`python -m bert_tf2 run_squad --help`: the command `bert_tf2` for users whose path does not have its folder."""

from bert_tf2.commands import main

main()
