-- While a handler of the user's own runs, its transaction has a row here. A COMMIT of the handler's
-- would keep half of what was to happen, so with that row it fails. Nothing is ever left here.
CREATE TABLE handling (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY
);

CREATE FUNCTION refuse_commit() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM handling WHERE id = NEW.id) THEN
        RAISE EXCEPTION 'a handler must not commit the transaction that it was called in'
            USING ERRCODE = 'invalid_transaction_termination';
    END IF;
    RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER handling_has_ended AFTER INSERT ON handling
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse_commit();
