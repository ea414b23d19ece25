//! The part of the module API of Redis and Valkey that is used: functions, looked up by name, and the structures that
//! they take. Everything that crosses the boundary is declared here.
//!
//! One build loads in Redis 7.0 and all later servers: a function that not all of them have is an
//! `Option`. The safe side of this is `context.rs` and `key.rs`.

use std::{
    ffi::{CStr, c_char, c_int, c_long, c_longlong, c_uint, c_void},
    mem::transmute,
    ptr::{null, null_mut},
    sync::OnceLock,
};

/// Return value of a function that succeeded.
pub(crate) const OK: c_int = 0;
/// Return value of a function that failed.
pub(crate) const ERR: c_int = 1;

pub(crate) const API_VERSION: c_int = 1;
pub(crate) const OPEN_READ: c_int = 1;
pub(crate) const OPEN_WRITE: c_int = 2;
pub(crate) const TYPE_EMPTY: c_int = 0;
pub(crate) const TYPE_STRING: c_int = 1;
pub(crate) const NO_EXPIRE: c_longlong = -1;
/// A key counts as changed when the module signals that, not whenever it is opened for writing.
pub(crate) const OPTION_SIGNAL_BY_HAND: c_int = 1 << 1;
pub(crate) const CONFIG_IMMUTABLE: c_uint = 1;
/// Events of generic commands, string commands, expiry and eviction.
pub(crate) const NOTIFY_CHANGES: c_int = 1 << 2 | 1 << 3 | 1 << 8 | 1 << 9;
/// The letter `d` of `notify-keyspace-events`.
pub(crate) const NOTIFY_MODULE: c_int = 1 << 13;
pub(crate) const FLAG_LUA: c_int = 1;
pub(crate) const FLAG_MULTI: c_int = 1 << 1;
pub(crate) const FLAG_MASTER: c_int = 1 << 2;
pub(crate) const FLAG_CLUSTER: c_int = 1 << 5;
pub(crate) const FLAG_AOF: c_int = 1 << 6;
pub(crate) const FLAG_DENY_BLOCKING: c_int = 1 << 21;

/// Types of the server that are only passed by address.
macro_rules! opaque {
    ($($name:ident)*) => {
        $(
            #[repr(C)]
            #[derive(Debug)]
            pub(crate) struct $name {
                _private: [u8; 0],
            }
        )*
    };
}

opaque!(Ctx Text KeyHandle Command BlockedClient InfoCtx CallReply ServerInfo);

pub(crate) type Run = unsafe extern "C" fn(*mut Ctx, *mut *mut Text, c_int) -> c_int;
pub(crate) type OnTimer = unsafe extern "C" fn(*mut Ctx, *mut c_void);
pub(crate) type OnDisconnect = unsafe extern "C" fn(*mut Ctx, *mut BlockedClient);
pub(crate) type OnFree = unsafe extern "C" fn(*mut Ctx, *mut c_void);
pub(crate) type OnInfo = unsafe extern "C" fn(*mut InfoCtx, c_int);
pub(crate) type OnKey = unsafe extern "C" fn(*mut Ctx, c_int, *const c_char, *mut Text) -> c_int;
pub(crate) type OnEvent = unsafe extern "C" fn(*mut Ctx, Event, u64, *mut c_void);
pub(crate) type GetBool = unsafe extern "C" fn(*const c_char, *mut c_void) -> c_int;
pub(crate) type SetBool =
    unsafe extern "C" fn(*const c_char, c_int, *mut c_void, *mut *mut Text) -> c_int;
pub(crate) type Apply = unsafe extern "C" fn(*mut Ctx, *mut c_void, *mut *mut Text) -> c_int;

/// Declares the table of functions, and the function that looks it up.
macro_rules! table {
    (needed { $($field:ident = $name:literal: fn($($taken:tt)*) $(-> $given:ty)?;)* }
     optional { $($maybe:ident = $maybe_name:literal: fn($($maybe_taken:tt)*) $(-> $maybe_given:ty)?;)* }) => {
        /// The functions of the server.
        #[derive(Clone, Copy, Debug)]
        pub(crate) struct Api {
            $(pub(crate) $field: unsafe extern "C" fn($($taken)*) $(-> $given)?,)*
            $(pub(crate) $maybe: Option<unsafe extern "C" fn($($maybe_taken)*) $(-> $maybe_given)?>,)*
        }

        impl Api {
            /// Looks up the functions. An error is the name of a required one that is missing.
            ///
            /// # Safety
            /// `ctx` must be the context that the server passed on loading.
            unsafe fn find(ctx: *mut Ctx) -> Result<Self, &'static CStr> {
                // SAFETY: the first field of a context is the function that looks up others.
                let get = unsafe { *ctx.cast::<Option<GetApi>>() }.ok_or(c"GetApi")?;
                let find = |name: &CStr| {
                    let mut found = null_mut::<c_void>();
                    // SAFETY: it writes one pointer, if it has a function of that name.
                    let answer = unsafe { get(name.as_ptr(), &raw mut found) };
                    (answer == OK && !found.is_null()).then_some(found)
                };
                Ok(Self {
                    // SAFETY: the result for a name is the function that the API documents under that name; the types
                    // here are those.
                    $($field: unsafe {
                        transmute::<*mut c_void, unsafe extern "C" fn($($taken)*) $(-> $given)?>(
                            find($name).ok_or($name)?,
                        )
                    },)*
                    // SAFETY: as above.
                    $($maybe: find($maybe_name).map(|found| unsafe {
                        transmute::<*mut c_void, unsafe extern "C" fn($($maybe_taken)*) $(-> $maybe_given)?>(found)
                    }),)*
                })
            }
        }
    };
}

type GetApi = unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int;

table! {
    needed {
        is_name_busy = c"RedisModule_IsModuleNameBusy": fn(*const c_char) -> c_int;
        set_attributes = c"RedisModule_SetModuleAttribs": fn(*mut Ctx, *const c_char, c_int, c_int);
        set_options = c"RedisModule_SetModuleOptions": fn(*mut Ctx, c_int);
        log = c"RedisModule_Log": fn(*mut Ctx, *const c_char, *const c_char, ...);
        create_command = c"RedisModule_CreateCommand":
            fn(*mut Ctx, *const c_char, Run, *const c_char, c_int, c_int, c_int) -> c_int;
        get_command = c"RedisModule_GetCommand": fn(*mut Ctx, *const c_char) -> *mut Command;
        set_command_info = c"RedisModule_SetCommandInfo":
            fn(*mut Command, *const CommandInfo) -> c_int;
        register_bool = c"RedisModule_RegisterBoolConfig":
            fn(*mut Ctx, *const c_char, c_int, c_uint, GetBool, SetBool, Option<Apply>, *mut c_void) -> c_int;
        load_configs = c"RedisModule_LoadConfigs": fn(*mut Ctx) -> c_int;
        register_info = c"RedisModule_RegisterInfoFunc": fn(*mut Ctx, OnInfo) -> c_int;
        info_section = c"RedisModule_InfoAddSection": fn(*mut InfoCtx, *const c_char) -> c_int;
        info_number = c"RedisModule_InfoAddFieldULongLong":
            fn(*mut InfoCtx, *const c_char, u64) -> c_int;
        context_flags = c"RedisModule_GetContextFlags": fn(*mut Ctx) -> c_int;
        asks_for_keys = c"RedisModule_IsKeysPositionRequest": fn(*mut Ctx) -> c_int;
        key_at = c"RedisModule_KeyAtPos": fn(*mut Ctx, c_int);
        string_bytes = c"RedisModule_StringPtrLen": fn(*const Text, *mut usize) -> *const c_char;
        create_string = c"RedisModule_CreateString":
            fn(*mut Ctx, *const c_char, usize) -> *mut Text;
        free_string = c"RedisModule_FreeString": fn(*mut Ctx, *mut Text);
        open_key = c"RedisModule_OpenKey": fn(*mut Ctx, *mut Text, c_int) -> *mut KeyHandle;
        close_key = c"RedisModule_CloseKey": fn(*mut KeyHandle);
        key_type = c"RedisModule_KeyType": fn(*mut KeyHandle) -> c_int;
        delete_key = c"RedisModule_DeleteKey": fn(*mut KeyHandle) -> c_int;
        string_dma = c"RedisModule_StringDMA": fn(*mut KeyHandle, *mut usize, c_int) -> *mut c_char;
        string_truncate = c"RedisModule_StringTruncate": fn(*mut KeyHandle, usize) -> c_int;
        get_expire = c"RedisModule_GetAbsExpire": fn(*mut KeyHandle) -> c_longlong;
        set_expire = c"RedisModule_SetAbsExpire": fn(*mut KeyHandle, c_longlong) -> c_int;
        signal_modified = c"RedisModule_SignalModifiedKey": fn(*mut Ctx, *mut Text) -> c_int;
        call = c"RedisModule_Call":
            fn(*mut Ctx, *const c_char, *const c_char, ...) -> *mut CallReply;
        free_call_reply = c"RedisModule_FreeCallReply": fn(*mut CallReply);
        replicate = c"RedisModule_Replicate":
            fn(*mut Ctx, *const c_char, *const c_char, ...) -> c_int;
        replicate_verbatim = c"RedisModule_ReplicateVerbatim": fn(*mut Ctx) -> c_int;
        server_info = c"RedisModule_GetServerInfo": fn(*mut Ctx, *const c_char) -> *mut ServerInfo;
        server_info_number = c"RedisModule_ServerInfoGetFieldUnsigned":
            fn(*mut ServerInfo, *const c_char, *mut c_int) -> u64;
        free_server_info = c"RedisModule_FreeServerInfo": fn(*mut Ctx, *mut ServerInfo);
        notify = c"RedisModule_NotifyKeyspaceEvent":
            fn(*mut Ctx, c_int, *const c_char, *mut Text) -> c_int;
        subscribe_keys = c"RedisModule_SubscribeToKeyspaceEvents":
            fn(*mut Ctx, c_int, OnKey) -> c_int;
        subscribe_event = c"RedisModule_SubscribeToServerEvent":
            fn(*mut Ctx, Event, OnEvent) -> c_int;
        reply_integer = c"RedisModule_ReplyWithLongLong": fn(*mut Ctx, c_longlong) -> c_int;
        reply_array = c"RedisModule_ReplyWithArray": fn(*mut Ctx, c_long) -> c_int;
        reply_map = c"RedisModule_ReplyWithMap": fn(*mut Ctx, c_long) -> c_int;
        reply_bytes = c"RedisModule_ReplyWithStringBuffer":
            fn(*mut Ctx, *const c_char, usize) -> c_int;
        reply_null = c"RedisModule_ReplyWithNull": fn(*mut Ctx) -> c_int;
        reply_error = c"RedisModule_ReplyWithError": fn(*mut Ctx, *const c_char) -> c_int;
        block_client = c"RedisModule_BlockClient":
            fn(*mut Ctx, Option<Run>, Option<Run>, Option<OnFree>, c_longlong) -> *mut BlockedClient;
        unblock_client = c"RedisModule_UnblockClient": fn(*mut BlockedClient, *mut c_void) -> c_int;
        private_data = c"RedisModule_GetBlockedClientPrivateData": fn(*mut Ctx) -> *mut c_void;
        on_disconnect = c"RedisModule_SetDisconnectCallback": fn(*mut BlockedClient, OnDisconnect);
        create_timer = c"RedisModule_CreateTimer":
            fn(*mut Ctx, c_longlong, OnTimer, *mut c_void) -> u64;
        stop_timer = c"RedisModule_StopTimer": fn(*mut Ctx, u64, *mut *mut c_void) -> c_int;
        selected_db = c"RedisModule_GetSelectedDb": fn(*mut Ctx) -> c_int;
        select_db = c"RedisModule_SelectDb": fn(*mut Ctx, c_int) -> c_int;
        avoid_replica_traffic = c"RedisModule_AvoidReplicaTraffic": fn() -> c_int;
    }
    optional {
        // From Redis 7.2 and Valkey 7.2 on.
        cached_microseconds = c"RedisModule_CachedMicroseconds": fn() -> c_longlong;
        set_acl_categories = c"RedisModule_SetCommandACLCategories":
            fn(*mut Command, *const c_char) -> c_int;
        // Valkey alone.
        embed_string = c"ValkeyModule_StringSet": fn(*mut KeyHandle, *mut Text) -> c_int;
        // From Redis 7.4 and Valkey 8.0 on.
        add_acl_category = c"RedisModule_AddACLCategory": fn(*mut Ctx, *const c_char) -> c_int;
    }
}

static API: OnceLock<Api> = OnceLock::new();

/// Looks up the functions, once. An error is the name of a required one that is missing.
///
/// # Safety
/// `ctx` must be the context that the server passed on loading.
pub(crate) unsafe fn load(ctx: *mut Ctx) -> Result<(), &'static CStr> {
    if API.get().is_none() {
        // SAFETY: the caller's promise.
        let api = unsafe { Api::find(ctx) }?;
        API.get_or_init(|| api);
    }
    Ok(())
}

/// The functions of the server.
#[inline]
pub(crate) fn api() -> &'static Api {
    API.get().expect("the server calls the module only after loading it")
}

/// A kind of event of the server.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Event {
    pub(crate) id: u64,
    pub(crate) version: u64,
}

impl Event {
    pub(crate) const ROLE_CHANGED: Self = Self { id: 0, version: 1 };
    pub(crate) const FLUSHED: Self = Self { id: 2, version: 1 };
    pub(crate) const REPLICA_CHANGED: Self = Self { id: 6, version: 1 };
    /// The server runs its periodic tasks, many times per second.
    pub(crate) const CRON: Self = Self { id: 8, version: 1 };
    /// A child process of the server has started or ended.
    pub(crate) const CHILD: Self = Self { id: 13, version: 1 };
    pub(crate) const CONFIG_CHANGED: Self = Self { id: 16, version: 1 };
    pub(crate) const SWAPPED: Self = Self { id: 11, version: 1 };
}

/// Description of a command, besides its name.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct CommandInfo {
    pub(crate) version: *const CommandInfoVersion,
    pub(crate) summary: *const c_char,
    pub(crate) complexity: *const c_char,
    pub(crate) since: *const c_char,
    pub(crate) history: *const c_void,
    pub(crate) tips: *const c_char,
    pub(crate) arity: c_int,
    pub(crate) key_specs: *const KeySpec,
    pub(crate) arguments: *const CommandArgument,
}

/// Sizes of the structures of a [`CommandInfo`].
#[repr(C)]
#[derive(Debug)]
pub(crate) struct CommandInfoVersion {
    version: c_int,
    history: usize,
    key_spec: usize,
    argument: usize,
}

impl CommandInfoVersion {
    pub(crate) const ONE: Self = Self {
        version: 1,
        history: 2 * size_of::<*const c_char>(),
        key_spec: size_of::<KeySpec>(),
        argument: size_of::<CommandArgument>(),
    };
}

/// Which arguments are keys. All zeros ends a list.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct KeySpec {
    pub(crate) notes: *const c_char,
    pub(crate) flags: u64,
    pub(crate) begin: c_int,
    pub(crate) begin_at: BeginAt,
    pub(crate) find: c_int,
    /// A union: `last key, step, limit`, or `index of the count, first key, step`.
    pub(crate) keys: [c_int; 3],
}

/// A union: the index of the first key, or a keyword and the index from which it is searched.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct BeginAt {
    pub(crate) index: c_int,
    pub(crate) unused: *const c_char,
}

/// Documentation of an argument. All zeros ends a list.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct CommandArgument {
    pub(crate) name: *const c_char,
    pub(crate) kind: c_int,
    pub(crate) key_spec: c_int,
    pub(crate) token: *const c_char,
    pub(crate) summary: *const c_char,
    pub(crate) since: *const c_char,
    pub(crate) flags: c_int,
    pub(crate) deprecated: *const c_char,
    pub(crate) parts: *const Self,
    pub(crate) display: *const c_char,
}

impl CommandArgument {
    /// The end of a list.
    pub(crate) const END: Self = Self {
        name: null(),
        kind: 0,
        key_spec: 0,
        token: null(),
        summary: null(),
        since: null(),
        flags: 0,
        deprecated: null(),
        parts: null(),
        display: null(),
    };
}

pub(crate) const BEGIN_AT_INDEX: c_int = 2;
pub(crate) const FIND_RANGE: c_int = 2;
pub(crate) const FIND_BY_COUNT: c_int = 3;
pub(crate) const KEY_READ_ONLY: u64 = 1;
pub(crate) const KEY_READ_WRITE: u64 = 1 << 1;
pub(crate) const KEY_REMOVE: u64 = 1 << 3;
pub(crate) const KEY_ACCESS: u64 = 1 << 4;
pub(crate) const KEY_UPDATE: u64 = 1 << 5;
pub(crate) const KEY_DELETE: u64 = 1 << 7;
/// The server calls the command to find which arguments are keys (`variable_flags`).
pub(crate) const KEY_ASK_COMMAND: u64 = 1 << 10;
pub(crate) const ARGUMENT_STRING: c_int = 0;
pub(crate) const ARGUMENT_INTEGER: c_int = 1;
pub(crate) const ARGUMENT_KEY: c_int = 3;
pub(crate) const ARGUMENT_PURE_TOKEN: c_int = 6;
pub(crate) const ARGUMENT_BLOCK: c_int = 8;
pub(crate) const ARGUMENT_OPTIONAL: c_int = 1;
pub(crate) const ARGUMENT_MULTIPLE: c_int = 1 << 1;
