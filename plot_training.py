"""Draws the curves of one or several trainings: losses, accuracy, learning rate, gradient norm, speed.

    python plot_training.py --help

shows every flag. They are stated in bert_tf2/training/options.py, as the class PlotTrainingOptions.
"""

from bert_tf2 import commands

if __name__ == "__main__":
    commands.run("plot_training")
