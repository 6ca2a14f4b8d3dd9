"""Spark-TTS behind the Engine protocol."""
