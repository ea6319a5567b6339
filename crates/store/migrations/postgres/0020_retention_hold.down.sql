alter table service drop column retention_held_until;
