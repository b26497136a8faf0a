"""How deliveries become state: intake, group commit, settle, and the worker for what waits."""
