//! Makes a token. Its text is given back this once.

use domain::limits::TOKENS_PER_TENANT;
use domain::{Access, Label, Name, Right, Role, TenantId, Time, TokenId, TokenText};
use serde_json::json;

use crate::clock::{fill_random, new_uuid};
use crate::codec::to_json;
use crate::error::StoreError;
use crate::store::Store;
use crate::tenants;
use crate::timeline::{self, Entry};
use crate::tokens::authenticate::TRUST;
use crate::tokens::{Hash, Serves, Token, hash, list, move_version, serves_to_json};
use crate::tx::{Operation, Param, Sql, Tx};

/// A token to be made. Everything in it has been checked but what only the database knows.
#[derive(Clone, Debug)]
pub struct NewToken {
    pub name: Label,
    /// Whose it shall be; the maker's own tenant unless given.
    pub tenant: Option<Name>,
    pub access: Access,
    pub serves: Option<NewServes>,
    pub expires_at: Option<Time>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewServes {
    Everyone,
    Tenants(Vec<Name>),
}

/// Who makes it.
#[derive(Clone, Debug)]
pub enum Maker {
    /// Someone at the machine, with the database in hand.
    Machine,
    /// Whoever reached a server that has no tokens yet.
    Local,
    Token(TokenId),
}

#[derive(Debug)]
pub enum TokenCreated {
    Created(Box<Token>, TokenText),
    NoSuchTenant(Name),
    /// It could do more, or longer, than the token it is made with.
    MoreThanItsParent(&'static str),
    /// The token it is made with has ended meanwhile.
    ParentGone,
    /// Somebody else made the first token meanwhile.
    NotTheFirst,
    Misplaced(&'static str),
    TooMany,
}

impl Store {
    /// Once this returns, the token is good everywhere; and after the first of all, nothing is answered without one.
    pub async fn create_token(&self, maker: Maker, token: NewToken) -> Result<TokenCreated, StoreError> {
        let text = TokenText::from_random(|| {
            let mut byte = [0];
            fill_random(&mut byte);
            byte[0]
        });
        let (created, first) = self.write(Create { maker, token, hash: hash(&text) }).await?;
        self.tokens().forget();
        if first {
            tokio::time::sleep(TRUST).await;
        }
        Ok(match created {
            Ok(token) => TokenCreated::Created(token, text),
            Err(refusal) => refusal,
        })
    }
}

struct Create {
    maker: Maker,
    token: NewToken,
    hash: Hash,
}

const COUNT: Sql = Sql::both(&["select count(*) from tokens
     where tenant = $1 and revoked_at is null and (expires_at is null or expires_at > $2)"]);
const INSERT: Sql = Sql::both(&["insert into tokens
         (id, tenant, hash, name, role, rights, queues, serves, parent, created_by, created_at, expires_at)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"]);

impl Operation for Create {
    /// And whether it is the first of all.
    type Output = (Result<Box<Token>, TokenCreated>, bool);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let parent = match self.parent(tx).await? {
            Ok(parent) => parent,
            Err(refusal) => return Ok((Err(refusal), false)),
        };
        let (tenant, serves) = match self.place(tx, parent.as_ref()).await? {
            Ok(place) => place,
            Err(refusal) => return Ok((Err(refusal), false)),
        };
        let now = tx.now();
        let living = tx.query_opt(&COUNT, &[Param::Int(tenant.0), Param::Time(now)]).await?;
        if living.map(|row| row.int(0)).transpose()?.unwrap_or(0) as usize >= TOKENS_PER_TENANT {
            return Ok((Err(TokenCreated::TooMany), false));
        }
        let version = move_version(tx).await?;
        if matches!(self.maker, Maker::Local) && version != 1 {
            return Ok((Err(TokenCreated::NotTheFirst), false));
        }
        let id = TokenId::new(new_uuid(now));
        self.insert(tx, id, tenant, serves.as_ref(), parent.as_ref()).await?;
        let made = list::find(tx, id).await?.ok_or_else(|| StoreError::unexpected("a token that was just made"))?;
        let detail = json!({"token": &*made.name, "id": id.uuid(), "role": made.access.role.as_str()}).to_string();
        timeline::write(tx, &[Entry::by(tenant, &made.created_by, "token_created", detail)]).await?;
        Ok((Ok(Box::new(made)), version == 1))
    }
}

impl Create {
    /// The token it is made with, as it is now.
    async fn parent(&self, tx: &mut Tx<'_>) -> Result<Result<Option<Token>, TokenCreated>, StoreError> {
        let Maker::Token(id) = self.maker else { return Ok(Ok(None)) };
        let Some(parent) = list::find(tx, id).await?.filter(|parent| parent.is_alive(tx.now())) else {
            return Ok(Err(TokenCreated::ParentGone));
        };
        let within = self.token.access.is_within(&parent.access) && parent.access.has(Right::ManageTokens);
        if !within {
            return Ok(Err(TokenCreated::MoreThanItsParent("it may do more than the token it is made with")));
        }
        let outlives = match (self.token.expires_at, parent.expires_at) {
            (_, None) => false,
            (None, Some(_)) => true,
            (Some(own), Some(last)) => own > last,
        };
        if outlives {
            return Ok(Err(TokenCreated::MoreThanItsParent("it may not last longer than the token it is made with")));
        }
        Ok(Ok(Some(parent)))
    }

    /// Whose it becomes, and whom it serves. Only the built-in tenant and the machine reach beyond their own tenant; for
    /// the others no other tenant exists.
    async fn place(
        &self,
        tx: &mut Tx<'_>,
        parent: Option<&Token>,
    ) -> Result<Result<(TenantId, Option<Serves>), TokenCreated>, StoreError> {
        let own = match (&self.maker, parent) {
            (Maker::Token(_), Some(parent)) => parent.tenant,
            _ => TenantId::DEFAULT,
        };
        let reaches_all = matches!(self.maker, Maker::Machine) || own == TenantId::SYSTEM;
        let tenant = match &self.token.tenant {
            None => own,
            Some(name) => match tenants::find(tx, name).await?.filter(|found| reaches_all || *found == own) {
                Some(tenant) => tenant,
                None => return Ok(Err(TokenCreated::NoSuchTenant(name.clone()))),
            },
        };
        let Some(serves) = &self.token.serves else { return Ok(Ok((tenant, None))) };
        if tenant != TenantId::SYSTEM || self.token.access.role != Role::Worker {
            let detail = "is for worker tokens of the tenant system alone";
            return Ok(Err(TokenCreated::Misplaced(detail)));
        }
        let names = match serves {
            NewServes::Everyone => return Ok(Ok((tenant, Some(Serves::Everyone)))),
            NewServes::Tenants(names) => names,
        };
        let mut served = Vec::with_capacity(names.len());
        for name in names {
            match tenants::find(tx, name).await? {
                Some(found) => served.push((found, name.clone())),
                None => return Ok(Err(TokenCreated::NoSuchTenant(name.clone()))),
            }
        }
        Ok(Ok((tenant, Some(Serves::Tenants(served)))))
    }

    async fn insert(
        &self,
        tx: &mut Tx<'_>,
        id: TokenId,
        tenant: TenantId,
        serves: Option<&Serves>,
        parent: Option<&Token>,
    ) -> Result<(), StoreError> {
        let NewToken { name, access, expires_at, .. } = &self.token;
        let rights = to_json(&access.granted.iter().map(Right::as_str).collect::<Vec<_>>());
        let queues = access.queues.as_ref();
        let queues = queues.map(|queues| to_json(&queues.iter().map(Name::as_str).collect::<Vec<_>>()));
        let serves = serves.map(serves_to_json);
        let by = match (&self.maker, parent) {
            (Maker::Machine, _) => "machine",
            (_, Some(parent)) => &parent.name,
            (_, None) => "local",
        };
        let params = [
            Param::Uuid(id.uuid()),
            Param::Int(tenant.0),
            Param::Blob(&self.hash),
            Param::Text(name.as_str()),
            Param::Text(access.role.as_str()),
            Param::Json(&rights),
            Param::json(queues.as_deref()),
            Param::json(serves.as_deref()),
            Param::uuid(parent.map(|parent| parent.id.uuid())),
            Param::Text(by),
            Param::Time(tx.now()),
            Param::time(*expires_at),
        ];
        tx.execute(&INSERT, &params).await.map(|_| ())
    }
}
