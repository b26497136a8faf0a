-- What is stored for later is in the queue by the same statement that stores it.
CREATE TYPE written_due AS (
    run_at timestamptz, event_id uuid, attempt smallint, waits_on bytea
);

COMMENT ON COLUMN due.attempt IS 'how often the event failed for a fault of ours';

-- Events that a new process is settling one by one: what is still here when somebody else takes the
-- event was left by a process that ended over it.
CREATE TABLE started (
    event_id uuid PRIMARY KEY,
    starts   smallint NOT NULL
);

ALTER TABLE due DROP COLUMN starts;

-- By time alone: an index that also has the id would be taken, on a table without statistics, for
-- finding ids, which means reading all of it.
DROP INDEX due_run_at;

CREATE INDEX due_run_at ON due (run_at);
