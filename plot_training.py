"""Draws the curves of one or several trainings: losses, accuracy, learning rate, gradient norm, speed.

    python plot_training.py --help

shows every flag. The class PlotTrainingOptions in bert_tf2/training/options.py defines the flags.
"""

from bert_tf2 import commands

if __name__ == "__main__":
    commands.run("plot_training")
