"""The judge stage: an answer that is held back is found weak or not, compared with another, and asked again where that helps."""
