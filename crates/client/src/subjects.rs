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
    /// Subjects by id; of one kind, or with ids that begin with `prefix`, if asked.
    pub async fn subjects(
        &self,
        kind: Option<&str>,
        prefix: Option<&str>,
        cursor: Option<&str>,
    ) -> Result<Page<SubjectView>, ClientError> {
        let query = [("kind", kind), ("prefix", prefix), ("cursor", cursor)];
        let query: Vec<_> = query.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        self.answer(self.get(&["subjects"]).query(&query)).await
    }

    pub async fn subject(&self, id: &str) -> Result<SubjectView, ClientError> {
        self.answer(self.get(&["subjects", id])).await
    }

    /// Sets facts, and makes the subject if there is none. What is not named stays; `null` takes a fact away.
    pub async fn set_subject(&self, id: &str, request: &SubjectRequest) -> Result<SubjectView, ClientError> {
        self.answer(self.request(Method::PUT, &["subjects", id]).json(request)).await
    }

    /// Refused with `subject_busy` while work on it is unfinished. Its history stays.
    pub async fn delete_subject(&self, id: &str) -> Result<(), ClientError> {
        self.done(self.request(Method::DELETE, &["subjects", id])).await
    }

    /// Everything done to a subject, newest first.
    pub async fn subject_history(
        &self,
        id: &str,
        limit: Option<usize>,
        cursor: Option<&str>,
    ) -> Result<Page<TimelineItem>, ClientError> {
        let limit = limit.map(|limit| limit.to_string());
        let query = [("limit", limit.as_deref()), ("cursor", cursor)];
        let query: Vec<_> = query.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        self.answer(self.get(&["subjects", id, "history"]).query(&query)).await
    }

    /// Keeps a process, or with `*` every process, off a subject.
    pub async fn lock_out(
        &self,
        subject: &str,
        process: &str,
        request: &BackoffRequest,
    ) -> Result<BackoffView, ClientError> {
        self.answer(self.request(Method::PUT, &["subjects", subject, "backoffs", process]).json(request)).await
    }

    /// Lets a process in again.
    pub async fn let_in(&self, subject: &str, process: &str) -> Result<(), ClientError> {
        self.done(self.request(Method::DELETE, &["subjects", subject, "backoffs", process])).await
    }

    /// A credential for the subject's own agent: it can set this subject's facts and do nothing else. The one before
    /// ends.
    pub async fn make_subject_credential(&self, subject: &str) -> Result<SubjectCredential, ClientError> {
        self.answer(self.request(Method::POST, &["subjects", subject, "credential"])).await
    }

    /// As the subject's own agent, with its credential as this client's token: says facts, as a heartbeat does.
    pub async fn report_facts(&self, subject: &str, facts: &impl Serialize) -> Result<(), ClientError> {
        let encode = |error: serde_json::Error| ClientError::Encode(error.into());
        let text = serde_json::to_string(facts).map_err(encode)?;
        let facts: BTreeMap<String, Box<RawValue>> = serde_json::from_str(&text).map_err(encode)?;
        let request = self.request(Method::PUT, &["subjects", subject, "facts"]);
        self.done(request.json(&FactsReport { facts })).await
    }

    pub async fn processes(&self, cursor: Option<&str>) -> Result<Page<ProcessView>, ClientError> {
        let query: Vec<_> = cursor.map(|cursor| ("cursor", cursor)).into_iter().collect();
        self.answer(self.get(&["processes"]).query(&query)).await
    }

    pub async fn process(&self, name: &str) -> Result<ProcessView, ClientError> {
        self.answer(self.get(&["processes", name])).await
    }

    /// Declares a process, or replaces what it declared before.
    pub async fn set_process(&self, name: &str, request: &ProcessRequest) -> Result<ProcessView, ClientError> {
        self.answer(self.request(Method::PUT, &["processes", name]).json(request)).await
    }

    /// Its jobs go on, and no more are made.
    pub async fn delete_process(&self, name: &str) -> Result<(), ClientError> {
        self.done(self.request(Method::DELETE, &["processes", name])).await
    }

    /// The subjects for which a job may be made now, first come first.
    pub async fn eligible_subjects(
        &self,
        process: &str,
        cursor: Option<&str>,
    ) -> Result<Page<EligibleView>, ClientError> {
        let query: Vec<_> = cursor.map(|cursor| ("cursor", cursor)).into_iter().collect();
        self.answer(self.get(&["processes", process, "eligible"]).query(&query)).await
    }
}
