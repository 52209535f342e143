-- How far running jobs have come, by the word of their holders. Only what is owed has it: an ended job is done.
--
-- A binary of version 2 may go on. Its claims come by the functions, and so they clear what an earlier attempt said. One
-- thing it cannot do, and it decides nothing: read the timeline of a job in which a report was refused.
ALTER TABLE tenure.jobs
    ADD COLUMN progress      smallint CHECK (progress BETWEEN 0 AND 1000), -- thousandths
    ADD COLUMN progress_note text;                       -- what is being done
