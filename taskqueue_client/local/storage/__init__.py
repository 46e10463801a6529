"""Storage for artifacts: S3-like buckets behind signed URLs, and the object service."""
