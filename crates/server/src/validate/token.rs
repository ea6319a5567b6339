//! Tokens: names, roles, rights, queues.

use domain::limits::TOKEN_SCOPE;
use domain::{Access, Right, Rights, Role, Time};
use store::tokens::create::{NewServes, NewToken};
use wire::{Serves, TokenRequest};

use super::Place;
use crate::error::ApiError;

pub(crate) fn new_token(request: TokenRequest, now: Time) -> Result<NewToken, ApiError> {
    let place = Place::Body;
    let role: Role = request.role.parse().map_err(|error| place.refuse("role", error))?;
    let expires_at = request.expires_at.map(|at| Time::from_micros(at.as_microsecond()));
    if expires_at.is_some_and(|at| at <= now) {
        return Err(place.refuse("expires_at", "must lie in the future"));
    }
    Ok(NewToken {
        name: place.label("name", &request.name)?,
        tenant: place.opt_name("tenant", request.tenant.as_deref())?,
        access: Access {
            role,
            granted: rights(place, &request.rights.unwrap_or_default())?,
            queues: request.queues.map(|queues| names(place, "queues", &queues)).transpose()?,
        },
        serves: request.serves.map(|serves| served(place, serves)).transpose()?,
        expires_at,
    })
}

fn rights(place: Place, rights: &[String]) -> Result<Rights, ApiError> {
    let right = |(number, right): (usize, &String)| {
        Right::grantable(right).map_err(|error| place.refuse(format_args!("rights[{number}]"), error))
    };
    rights.iter().enumerate().map(right).collect()
}

/// A list that narrows must name something: an empty one would be taken for all, or for nothing.
fn names(place: Place, member: &str, names: &[String]) -> Result<Vec<domain::Name>, ApiError> {
    if names.is_empty() {
        return Err(place.refuse(member, "must name at least one; leave it out for all"));
    }
    place.at_most(member, names.len(), TOKEN_SCOPE, "names")?;
    let name = |(number, name): (usize, &String)| place.name(&format!("{member}[{number}]"), name);
    names.iter().enumerate().map(name).collect()
}

fn served(place: Place, serves: Serves) -> Result<NewServes, ApiError> {
    match serves {
        Serves::Everyone(star) if star == "*" => Ok(NewServes::Everyone),
        Serves::Everyone(_) => Err(place.refuse("serves", "must be a list of tenants, or \"*\" for all")),
        Serves::Tenants(tenants) => Ok(NewServes::Tenants(names(place, "serves", &tenants)?)),
    }
}
