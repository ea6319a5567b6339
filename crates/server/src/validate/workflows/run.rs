//! Validation of runs and their nodes. The store checks the graph.

use domain::limits::RUN_NODES;
use domain::workflows::graph::GraphError;
use domain::{Label, NeedCondition, OnFailure, RunState};
use store::workflows::runs::{NewNode, NewRun, RunFilter};
use wire::{JobRequest, NodeRequest, RunRequest};

use crate::error::ApiError;
use crate::validate::FieldPath;
use crate::validate::queue::job::{JobBuilder, labels};
use crate::validate::triggers::webhook;

/// Validates a run. `id` is used if the request has none.
pub(crate) fn run(builder: &JobBuilder, request: RunRequest, id: String) -> Result<(NewRun, Vec<NewNode>), ApiError> {
    let path = FieldPath::Body;
    let on_failure = match request.on_failure.as_deref() {
        None => OnFailure::default(),
        Some(text) => OnFailure::parse(text).ok_or_else(|| path.refuse("on_failure", "must be cancel or continue"))?,
    };
    let run = NewRun {
        id: path.label("id", request.id.as_deref().unwrap_or(&id))?,
        name: path.optional_label("name", request.name.as_deref())?,
        on_failure,
        webhook: request.webhook.as_ref().map(|hook| webhook::stored(path, hook)).transpose()?,
        tags: labels(path, request.tags.as_deref().unwrap_or_default())?,
        principal: builder.principal.clone(),
        depth: builder.depth,
        parent: None,
    };
    Ok((run, nodes(builder, request.nodes)?))
}

pub(crate) fn nodes(builder: &JobBuilder, nodes: Vec<NodeRequest>) -> Result<Vec<NewNode>, ApiError> {
    if nodes.is_empty() {
        return Err(FieldPath::Body.refuse("nodes", "must have at least one node"));
    }
    FieldPath::Body.at_most("nodes", nodes.len(), RUN_NODES, "nodes")?;
    nodes.into_iter().enumerate().map(|(number, request)| node(builder, number, request)).collect()
}

fn node(builder: &JobBuilder, number: usize, request: NodeRequest) -> Result<NewNode, ApiError> {
    let path = FieldPath::Item { of: "nodes", number };
    let name = path.label("name", &request.name)?;
    let condition = match request.when.as_deref() {
        None => NeedCondition::default(),
        Some(text) => {
            NeedCondition::parse(text).ok_or_else(|| path.refuse("when", "must be success, failure or always"))?
        }
    };
    let needs = request.needs.unwrap_or_default();
    let need = |(position, need): (usize, &String)| path.label(&format!("needs[{position}]"), need);
    let needs: Vec<Label> = needs.iter().enumerate().map(need).collect::<Result<_, _>>()?;
    if needs.is_empty() && condition == NeedCondition::Failure {
        return Err(path.refuse("when", "is failure, and the node has no needs that could fail"));
    }
    let job = JobRequest {
        queue: request.queue,
        kind: request.kind,
        payload: request.payload,
        affinity: request.affinity,
        priority: request.priority,
        run_at: request.run_at,
        subject: request.subject,
        process: request.process,
        concurrency_key: request.concurrency_key,
        max_attempts: request.max_attempts,
        retry: request.retry,
        timeout_s: request.timeout_s,
        deadline_s: request.deadline_s,
        traceparent: request.traceparent,
        tags: request.tags,
        webhook: request.webhook,
        ..JobRequest::default()
    };
    Ok(NewNode { name, job: builder.job(path, job)?, needs, earlier_needs: Vec::new(), condition })
}

/// The response to a graph that the store refused.
pub(crate) fn refused(error: GraphError) -> ApiError {
    let at = |node: usize, member: &str| FieldPath::Item { of: "nodes", number: node }.refuse(member, &error);
    match &error {
        GraphError::DuplicateName { node, .. } => at(*node, "name"),
        GraphError::UnknownNeed { node, .. }
        | GraphError::DuplicateNeed { node, .. }
        | GraphError::Cycle { node, .. } => at(*node, "needs"),
        GraphError::TooManyNodes | GraphError::TooManyNeeds => FieldPath::Body.refuse("nodes", &error),
    }
}

pub(crate) fn filter(state: Option<&str>, name: Option<&str>, tag: Option<&str>) -> Result<RunFilter, ApiError> {
    let label = |parameter: &'static str, text: Option<&str>| {
        text.map(|text| Label::new(text).map_err(|error| ApiError::invalid_query(parameter, error))).transpose()
    };
    let state = state.map(|text| {
        RunState::parse(text)
            .ok_or_else(|| ApiError::invalid_query("state", "must be running, succeeded, failed or canceled"))
    });
    Ok(RunFilter { state: state.transpose()?, name: label("name", name)?, tag: label("tag", tag)? })
}
