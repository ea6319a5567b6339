//! Subjects and processes: facts, lockouts, timelines.

use std::collections::BTreeMap;

use reqwest::Method;
use serde::Serialize;
use wire::{
    BackoffRequest, BackoffView, EligibleView, FactsReport, Page, ProcessRequest, ProcessView, RawValue,
    SubjectCredential, SubjectRequest, SubjectView, TimelineItem,
};

use crate::client::Client;
use crate::error::ClientError;

impl Client {
    /// Returns subjects by id, optionally of one kind or with a prefix of the id.
    pub async fn subjects(
        &self,
        kind: Option<&str>,
        prefix: Option<&str>,
        cursor: Option<&str>,
    ) -> Result<Page<SubjectView>, ClientError> {
        let query = [("kind", kind), ("prefix", prefix), ("cursor", cursor)];
        let query: Vec<_> = query.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        self.fetch(self.get(&["subjects"]).query(&query)).await
    }

    /// Returns a subject.
    pub async fn subject(&self, id: &str) -> Result<SubjectView, ClientError> {
        self.fetch(self.get(&["subjects", id])).await
    }

    /// Sets facts and creates the subject if it does not exist. Other facts keep their values; `null` removes a fact.
    pub async fn set_subject(&self, id: &str, request: &SubjectRequest) -> Result<SubjectView, ClientError> {
        self.fetch(self.request(Method::PUT, &["subjects", id]).json(request)).await
    }

    /// Deletes a subject; its history is retained. Fails with `subject_busy` while it has unfinished jobs.
    pub async fn delete_subject(&self, id: &str) -> Result<(), ClientError> {
        self.execute(self.request(Method::DELETE, &["subjects", id])).await
    }

    /// Returns the events of a subject, newest first.
    pub async fn subject_history(
        &self,
        id: &str,
        limit: Option<usize>,
        cursor: Option<&str>,
    ) -> Result<Page<TimelineItem>, ClientError> {
        let limit = limit.map(|limit| limit.to_string());
        let query = [("limit", limit.as_deref()), ("cursor", cursor)];
        let query: Vec<_> = query.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        self.fetch(self.get(&["subjects", id, "history"]).query(&query)).await
    }

    /// Prevents a process, or with `*` every process, from creating jobs for a subject.
    pub async fn lock_out(
        &self,
        subject: &str,
        process: &str,
        request: &BackoffRequest,
    ) -> Result<BackoffView, ClientError> {
        self.fetch(self.request(Method::PUT, &["subjects", subject, "backoffs", process]).json(request)).await
    }

    /// Removes a lockout or a backoff.
    pub async fn release_subject(&self, subject: &str, process: &str) -> Result<(), ClientError> {
        self.execute(self.request(Method::DELETE, &["subjects", subject, "backoffs", process])).await
    }

    /// Creates a credential for the subject's own agent, which can only set this subject's facts. An earlier credential
    /// is revoked.
    pub async fn create_subject_credential(&self, subject: &str) -> Result<SubjectCredential, ClientError> {
        self.fetch(self.request(Method::POST, &["subjects", subject, "credential"])).await
    }

    /// Reports facts as the subject's own agent, with its credential as this client's token.
    pub async fn report_facts(&self, subject: &str, facts: &impl Serialize) -> Result<(), ClientError> {
        let encode = |error: serde_json::Error| ClientError::Encode(error.into());
        let text = serde_json::to_string(facts).map_err(encode)?;
        let facts: BTreeMap<String, Box<RawValue>> = serde_json::from_str(&text).map_err(encode)?;
        let request = self.request(Method::PUT, &["subjects", subject, "facts"]);
        self.execute(request.json(&FactsReport { facts })).await
    }

    /// Returns one page of processes.
    pub async fn processes(&self, cursor: Option<&str>) -> Result<Page<ProcessView>, ClientError> {
        let query: Vec<_> = cursor.map(|cursor| ("cursor", cursor)).into_iter().collect();
        self.fetch(self.get(&["processes"]).query(&query)).await
    }

    /// Returns a process.
    pub async fn process(&self, name: &str) -> Result<ProcessView, ClientError> {
        self.fetch(self.get(&["processes", name])).await
    }

    /// Creates or replaces a process.
    pub async fn set_process(&self, name: &str, request: &ProcessRequest) -> Result<ProcessView, ClientError> {
        self.fetch(self.request(Method::PUT, &["processes", name]).json(request)).await
    }

    /// Deletes a process. Its jobs continue, and no more are created.
    pub async fn delete_process(&self, name: &str) -> Result<(), ClientError> {
        self.execute(self.request(Method::DELETE, &["processes", name])).await
    }

    /// Returns the subjects for which a job can be created now, in order.
    pub async fn eligible_subjects(
        &self,
        process: &str,
        cursor: Option<&str>,
    ) -> Result<Page<EligibleView>, ClientError> {
        let query: Vec<_> = cursor.map(|cursor| ("cursor", cursor)).into_iter().collect();
        self.fetch(self.get(&["processes", process, "eligible"]).query(&query)).await
    }
}
