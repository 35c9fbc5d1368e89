"""`python -m bert_tf2 run_squad --help`: the command `bert_tf2` where its folder is not on the path."""

from bert_tf2.commands import main

main()
