-- What is stored for later is in the queue by the same statement that stores it.
CREATE TYPE written_due AS (
    run_at timestamptz, event_id uuid, attempt smallint, waits_on bytea
);

COMMENT ON COLUMN due.attempt IS 'how often the event failed for a fault of ours';

COMMENT ON COLUMN due.starts IS 'how often it was said that the event is tried, without an end';

-- By time alone: an index that also has the id would be taken, on a table without statistics, for
-- finding ids, which means reading all of it.
DROP INDEX due_run_at;

CREATE INDEX due_run_at ON due (run_at);
