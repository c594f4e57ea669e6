"""What measured times say: is a log normal, and which rates does it show?"""
