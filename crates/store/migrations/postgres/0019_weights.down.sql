alter table quotas drop column weight;
