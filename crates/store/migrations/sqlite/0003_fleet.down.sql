drop table timeline;
drop table backoffs;
drop table standings;
drop table processes;
drop table subject_credentials;
drop table subjects;
