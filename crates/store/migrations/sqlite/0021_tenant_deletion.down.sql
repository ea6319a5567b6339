alter table installation drop column last_tenant;
