-- Replays: events that are processed again, all that match a filter. Where one stands is committed
-- with what it did, so that whoever follows a killed process does nothing twice and leaves nothing
-- out. `version` grows with each step: of two processes at one replay, one cannot commit.
CREATE TABLE replays (
    id          uuid PRIMARY KEY,
    status      text COLLATE "C" NOT NULL DEFAULT 'PENDING',
    filter      jsonb NOT NULL,
    is_dry_run  boolean NOT NULL,
    rate        integer NOT NULL,
    actor       text NOT NULL,
    cursor      uuid,
    left_over   uuid[] NOT NULL DEFAULT '{}',
    total       bigint,
    done        bigint NOT NULL DEFAULT 0,
    counts      jsonb NOT NULL DEFAULT '{}',
    applied     jsonb NOT NULL DEFAULT '{}',
    sample      jsonb NOT NULL DEFAULT '[]',
    error       text,
    version     bigint NOT NULL DEFAULT 1,
    starts      smallint NOT NULL DEFAULT 0,
    next_at     timestamptz NOT NULL DEFAULT now(),
    created_at  timestamptz NOT NULL DEFAULT now(),
    started_at  timestamptz,
    paused_at   timestamptz,
    finished_at timestamptz,
    CONSTRAINT replays_status CHECK (
        status IN ('PENDING', 'RUNNING', 'PAUSED', 'DONE', 'CANCELED', 'FAILED')),
    CONSTRAINT replays_final_is_finished CHECK (
        (status IN ('DONE', 'CANCELED', 'FAILED')) = (finished_at IS NOT NULL)),
    CONSTRAINT replays_running_is_started CHECK (
        CASE status WHEN 'PENDING' THEN started_at IS NULL
                    WHEN 'RUNNING' THEN started_at IS NOT NULL
                    WHEN 'DONE' THEN started_at IS NOT NULL
                    ELSE true END),
    CONSTRAINT replays_paused_since CHECK ((status = 'PAUSED') = (paused_at IS NOT NULL)),
    CONSTRAINT replays_failed_has_error CHECK ((status = 'FAILED') = (error IS NOT NULL)),
    CONSTRAINT replays_rate CHECK (rate > 0),
    CONSTRAINT replays_numbers CHECK (done >= 0 AND total >= 0 AND version > 0 AND starts >= 0),
    CONSTRAINT replays_done_leaves_nothing CHECK (status <> 'DONE' OR left_over = '{}')
);

COMMENT ON COLUMN replays.total IS 'null: too many to count before it begins';

COMMENT ON COLUMN replays.left_over IS 'before the cursor, but others held them: to be tried again';

COMMENT ON COLUMN replays.next_at IS 'before that its rate allows nothing more';

-- What somebody has to run. It is looked at every second, and nearly always empty.
CREATE INDEX replays_active ON replays (id) WHERE status IN ('PENDING', 'RUNNING');
