-- name: in_order
-- For this transaction: rows come out of an index in the order that is wanted, and reading stops
-- when there are enough. Whatever the statistics say, nothing is gathered whole to be sorted.
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true),
       set_config('enable_sort', 'off', true), set_config('enable_incremental_sort', 'off', true),
       set_config('jit', 'off', true);
