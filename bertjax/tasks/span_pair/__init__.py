"""Classification of two marked spans of a text or a pair of texts: WiC and WSC of SuperGLUE."""
