-- What is stored for later is in the queue by the same statement that stores it.
CREATE TYPE written_due AS (
    run_at timestamptz, event_id uuid, attempt smallint, waits_on bytea
);

COMMENT ON COLUMN due.attempt IS 'how often the event failed for a fault of ours';

COMMENT ON COLUMN due.starts IS 'how often it was said that the event is tried, without an end';
