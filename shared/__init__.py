"""What every replication uses; this package knows no paper."""
