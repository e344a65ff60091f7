"""What happens to one sample: decoding, image transforms, the user's functions, and putting samples
together.
"""
