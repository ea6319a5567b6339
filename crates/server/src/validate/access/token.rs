//! Validation of tokens: names, roles, rights and queues.

use domain::limits::TOKEN_SCOPE_ITEMS;
use domain::{Access, Right, Rights, Role, Time};
use store::access::tokens::create::{NewServes, NewToken};
use wire::{Serves, TokenRequest};

use crate::error::ApiError;
use crate::validate::FieldPath;

pub(crate) fn new_token(request: TokenRequest, now: Time) -> Result<NewToken, ApiError> {
    let path = FieldPath::Body;
    let role: Role = request.role.parse().map_err(|error| path.refuse("role", error))?;
    let expires_at = request.expires_at.map(|at| Time::from_micros(at.as_microsecond()));
    if expires_at.is_some_and(|at| at <= now) {
        return Err(path.refuse("expires_at", "must be in the future"));
    }
    Ok(NewToken {
        name: path.label("name", &request.name)?,
        tenant: path.optional_name("tenant", request.tenant.as_deref())?,
        access: Access {
            role,
            granted: rights(path, &request.rights.unwrap_or_default())?,
            queues: request.queues.map(|queues| names(path, "queues", &queues)).transpose()?,
        },
        serves: request.serves.map(|serves| parse_serves(path, serves)).transpose()?,
        expires_at,
    })
}

fn rights(path: FieldPath, rights: &[String]) -> Result<Rights, ApiError> {
    let right = |(number, right): (usize, &String)| {
        Right::grantable(right).map_err(|error| path.refuse(format_args!("rights[{number}]"), error))
    };
    rights.iter().enumerate().map(right).collect()
}

/// A restricting list must not be empty: that could be read as everything or as nothing.
fn names(path: FieldPath, member: &str, names: &[String]) -> Result<Vec<domain::Name>, ApiError> {
    if names.is_empty() {
        return Err(path.refuse(member, "must name at least one; omit it for all"));
    }
    path.at_most(member, names.len(), TOKEN_SCOPE_ITEMS, "names")?;
    let name = |(number, name): (usize, &String)| path.name(&format!("{member}[{number}]"), name);
    names.iter().enumerate().map(name).collect()
}

fn parse_serves(path: FieldPath, serves: Serves) -> Result<NewServes, ApiError> {
    match serves {
        Serves::Everyone(star) if star == "*" => Ok(NewServes::Everyone),
        Serves::Everyone(_) => Err(path.refuse("serves", "must be a list of tenants, or \"*\" for all tenants")),
        Serves::Tenants(tenants) => Ok(NewServes::Tenants(names(path, "serves", &tenants)?)),
    }
}
