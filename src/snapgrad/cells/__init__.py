"""What is trained: recurrent cells and their derivatives."""
