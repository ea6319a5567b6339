-- Who made a job and what led to it, kept with its last word when it is pruned.
alter table history add column principal text;
alter table history add column triggered_by text;
