-- name: record
-- In the order of their digests, so that two transactions cannot deadlock on them. One that another
-- transaction is about to record is waited for.
INSERT INTO nonces (source_id, digest, fingerprint, fingerprint_version)
SELECT n.source_id, n.digest, n.fingerprint, n.fingerprint_version
  FROM unnest(:source_id::smallint[], :digest::bytea[], :fingerprint::bytea[],
              :fingerprint_version::smallint[])
       AS n (source_id, digest, fingerprint, fingerprint_version)
 ORDER BY n.source_id, n.digest
ON CONFLICT DO NOTHING;

-- name: recorded
SELECT n.source_id, n.digest, n.fingerprint, n.fingerprint_version
  FROM unnest(:source_id::smallint[], :digest::bytea[]) AS wanted (source_id, digest)
  JOIN nonces AS n USING (source_id, digest);
