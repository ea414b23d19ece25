//! Modules of one crate form layers: no two files use each other, not even by way of others.
//!
//! An arrow goes from a file to the one that defines what it uses. It is read from `use` items, from paths in code and
//! in the arguments of macros, and from calls of methods of `self` that another file implements; re-exports are followed.
//! Tests are left out.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::{ImplItem, Item, ItemImpl, ItemUse, UseTree, Visibility, visit::Visit};

use super::{files::RepoFile, findings::Findings};

/// Module path from the crate's root.
type Module = Vec<String>;

/// The modules of one crate.
#[derive(Default)]
struct Crate {
    /// The file of each module; modules inside of a file have its path.
    files: BTreeMap<Module, String>,
    /// What each module brings into scope, with the path that it has there.
    imports: BTreeMap<Module, Vec<Import>>,
    /// Each path that code uses, with the module where it does.
    uses: Vec<(Module, Module)>,
    /// Each method outside of traits, with its type, and the module that implements it.
    methods: Vec<(Method, Module)>,
    /// Each method of `self` that is called, with its type, and the module where it is.
    calls: Vec<(Method, Module)>,
}

/// A method of a type, which has a path from the crate's root.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Method {
    self_type: Module,
    name: String,
}

/// One name of a `use` item.
struct Import {
    /// `*` for all names.
    name: String,
    path: Module,
}

/// `arrows` are those of each crate, by its source folder.
pub(super) fn check(arrows: &[(String, Arrows)], findings: &mut Findings) {
    for (root, arrows) in arrows {
        for circle in circles(arrows) {
            findings.error(report(root, &circle, arrows));
        }
    }
}

fn report(root: &str, circle: &[String], arrows: &Arrows) -> String {
    let mut text = format!("{} files of {root} use each other in a circle:", circle.len());
    for from in circle {
        for to in arrows.get(from).into_iter().flatten().filter(|to| circle.contains(to)) {
            text.push_str(&format!("\n  {from} -> {to}"));
        }
    }
    text
}

/// From each file to those that it uses.
pub(super) type Arrows = BTreeMap<String, BTreeSet<String>>;

/// The source folder of each crate, with its arrows.
pub(super) fn arrows_by_crate(
    files: &[RepoFile],
    findings: &mut Findings,
) -> Vec<(String, Arrows)> {
    let mut crates: BTreeMap<String, Crate> = BTreeMap::new();
    for source in files {
        let Some((root, module)) = module_of(&source.path) else { continue };
        let Some(text) = &source.text else { continue };
        match syn::parse_file(text) {
            Ok(file) => crates.entry(root).or_default().add(&source.path, &module, &file.items),
            Err(error) => findings.error(format!("{} does not parse: {error}", source.path)),
        }
    }
    crates.into_iter().map(|(root, all)| (root, all.arrows())).collect()
}

/// The source folder and the module of a file; `None` for what is not Rust, and for tests and generated code.
fn module_of(path: &str) -> Option<(String, Module)> {
    let (root, rest) = path.split_once("/src/")?;
    if root.contains("fuzz") || rest.contains("generated") {
        return None;
    }
    let mut module: Module = rest.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if module.iter().any(|name| name == "tests") {
        return None;
    }
    if matches!(module.last().map(String::as_str), Some("mod" | "lib" | "main")) {
        module.pop();
    }
    Some((format!("{root}/src"), module))
}

impl Crate {
    fn add(&mut self, file: &str, module: &Module, items: &[Item]) {
        self.files.insert(module.clone(), file.to_owned());
        for item in items.iter().filter(|item| !is_test(item)) {
            match item {
                Item::Use(item) => self.add_use(module, item),
                Item::Mod(item) if item.content.is_some() => {
                    let mut inner = module.clone();
                    inner.push(item.ident.to_string());
                    let (_, items) = item.content.as_ref().expect("it was looked at");
                    self.add(file, &inner, items);
                }
                item => {
                    let mut paths = Paths::default();
                    paths.visit_item(item);
                    if let Item::Impl(item) = item {
                        self.add_methods(module, item, &paths.self_calls);
                    }
                    let paths = paths.all.into_iter().filter_map(|path| absolute(module, &path));
                    let uses: Vec<_> = paths.map(|path| (module.clone(), path)).collect();
                    self.uses.extend(uses);
                }
            }
        }
    }

    fn add_use(&mut self, module: &Module, item: &ItemUse) {
        let mut names = Vec::new();
        flatten(&item.tree, &mut Vec::new(), &mut names);
        for (name, path) in names {
            let Some(path) = absolute(module, &path) else { continue };
            // A re-export is a line in a table of contents: what is behind it need not be known here. If code of the file
            // uses the name, its path is an arrow (`Paths`).
            if matches!(item.vis, Visibility::Inherited) {
                self.uses.push((module.clone(), path.clone()));
            }
            self.imports.entry(module.clone()).or_default().push(Import { name, path });
        }
    }

    /// Adds the methods of an `impl` without a trait, and the calls of methods of `self` in any.
    fn add_methods(&mut self, module: &Module, item: &ItemImpl, self_calls: &BTreeSet<String>) {
        let syn::Type::Path(it) = &*item.self_ty else { return };
        let path: Module = it.path.segments.iter().map(|it| it.ident.to_string()).collect();
        let Some(self_type) = absolute(module, &path) else { return };
        let method = |name: String| (Method { self_type: self_type.clone(), name }, module.clone());
        if item.trait_.is_none() {
            let functions = item.items.iter().filter_map(|item| match item {
                ImplItem::Fn(function) => Some(function.sig.ident.to_string()),
                _ => None,
            });
            self.methods.extend(functions.map(method));
        }
        self.calls.extend(self_calls.iter().cloned().map(method));
    }

    fn arrows(mut self) -> Arrows {
        // A path may begin with a module beside it, or with a name that the module imports or defines.
        let known: BTreeSet<(Module, String)> = self
            .imports
            .iter()
            .flat_map(|(module, all)| all.iter().map(|it| (module.clone(), it.name.clone())))
            .collect();
        let is_known = |path: &[String], at: usize| {
            self.files.contains_key(&path[..=at])
                || known.contains(&(path[..at].to_vec(), path[at].clone()))
        };
        let mut all: Vec<&mut Module> =
            self.imports.values_mut().flatten().map(|it| &mut it.path).collect();
        all.extend(self.uses.iter_mut().map(|(_, path)| path));
        for path in all {
            if let Some(at) = path.iter().position(|name| name == BESIDE) {
                path.remove(at);
                if !is_known(path, at) {
                    path.clear();
                    path.push(BESIDE.to_owned());
                }
            }
        }
        for (method, _) in self.methods.iter_mut().chain(&mut self.calls) {
            method.self_type.retain(|name| name != BESIDE);
        }
        let mut arrows = Arrows::new();
        for (from, path) in self.uses.iter().filter(|(_, path)| path[..] != [BESIDE]) {
            let (Some(from), Some(to)) = (self.files.get(from), self.resolve(path, 0)) else {
                continue;
            };
            if from != to {
                arrows.entry(from.clone()).or_default().insert(to.clone());
            }
        }
        let resolved = |(method, module): &(Method, Module)| {
            let name = method.self_type.last().cloned().unwrap_or_default();
            let self_type = (self.resolve(&method.self_type, 0).cloned(), name);
            let file = self.files.get(module)?;
            Some(((self_type, method.name.clone()), file.clone()))
        };
        let methods: BTreeMap<_, String> = self.methods.iter().filter_map(resolved).collect();
        for (method, from) in self.calls.iter().filter_map(resolved) {
            if let Some(to) = methods.get(&method).filter(|to| **to != from) {
                arrows.entry(from).or_default().insert(to.clone());
            }
        }
        arrows
    }

    /// The file that defines what `path` names.
    fn resolve(&self, path: &[String], depth: usize) -> Option<&String> {
        if path.first().is_some_and(|name| name == BESIDE) {
            return None;
        }
        let mut module = Module::new();
        for (at, name) in path.iter().enumerate() {
            let mut inner = module.clone();
            inner.push(name.clone());
            if self.files.contains_key(&inner) {
                module = inner;
                continue;
            }
            let imports = self.imports.get(&module).map_or(&[] as &[Import], Vec::as_slice);
            let named = imports.iter().find(|import| import.name == *name);
            if let Some(import) = named.filter(|_| depth < 16) {
                let whole: Module = import.path.iter().chain(&path[at + 1..]).cloned().collect();
                return self.resolve(&whole, depth + 1);
            }
            break;
        }
        self.files.get(&module)
    }
}

/// In a path, the prefix of a name that is a module beside the code or another crate.
const BESIDE: &str = "?";

/// `path` from the crate's root; `None` if it leaves the crate.
fn absolute(module: &[String], path: &[String]) -> Option<Module> {
    let (first, mut rest) = path.split_first()?;
    if rest.is_empty() && matches!(first.as_str(), "crate" | "self" | "super") {
        return None; // A visibility, or a value.
    }
    let mut base = match first.as_str() {
        "crate" => Module::new(),
        "self" => module.to_vec(),
        "super" => module.split_last()?.1.to_vec(),
        _ => {
            let beside = [BESIDE.to_owned()];
            return Some(module.iter().chain(&beside).chain(path).cloned().collect());
        }
    };
    while let Some(("super", more)) = rest.split_first().map(|(name, more)| (name.as_str(), more)) {
        base.pop()?;
        rest = more;
    }
    base.extend_from_slice(rest);
    Some(base)
}

/// The names that a `use` item brings into scope, each with its path.
fn flatten(tree: &UseTree, path: &mut Module, names: &mut Vec<(String, Module)>) {
    match tree {
        UseTree::Path(tree) => {
            path.push(tree.ident.to_string());
            flatten(&tree.tree, path, names);
            path.pop();
        }
        UseTree::Group(group) => group.items.iter().for_each(|tree| flatten(tree, path, names)),
        UseTree::Glob(_) => names.push(("*".to_owned(), path.clone())),
        UseTree::Name(name) if name.ident == "self" => {
            names.push((path.last().cloned().unwrap_or_default(), path.clone()));
        }
        UseTree::Name(name) => {
            let name = name.ident.to_string();
            names.push((name.clone(), path.iter().cloned().chain([name]).collect()));
        }
        UseTree::Rename(tree) => {
            let whole = path.iter().cloned().chain([tree.ident.to_string()]).collect();
            names.push((tree.rename.to_string(), whole));
        }
    }
}

/// The paths in an item, and the methods of `self` that it calls.
#[derive(Default)]
struct Paths {
    all: Vec<Module>,
    self_calls: BTreeSet<String>,
}

impl Paths {
    /// The paths in the arguments of a macro.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let (mut path, mut colons) = (Module::new(), 0);
        for token in tokens {
            match token {
                TokenTree::Ident(name) => {
                    if colons != 2 {
                        self.all.push(std::mem::take(&mut path));
                    }
                    path.push(name.to_string());
                    colons = 0;
                }
                TokenTree::Punct(it) if it.as_char() == ':' => colons += 1,
                other => {
                    self.all.push(std::mem::take(&mut path));
                    colons = 0;
                    if let TokenTree::Group(group) = other {
                        self.add_tokens(group.stream());
                    }
                }
            }
        }
        self.all.push(path);
    }
}

impl<'ast> Visit<'ast> for Paths {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        self.all.push(path.segments.iter().map(|it| it.ident.to_string()).collect());
        syn::visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, item: &'ast syn::Macro) {
        self.add_tokens(item.tokens.clone());
        syn::visit::visit_macro(self, item);
    }

    fn visit_expr_method_call(&mut self, call: &'ast syn::ExprMethodCall) {
        if matches!(&*call.receiver, syn::Expr::Path(it) if it.path.is_ident("self")) {
            self.self_calls.insert(call.method.to_string());
        }
        syn::visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_call(&mut self, call: &'ast syn::ExprCall) {
        if let syn::Expr::Path(it) = &*call.func
            && it.path.segments.len() == 2
            && it.path.segments[0].ident == "Self"
        {
            self.self_calls.insert(it.path.segments[1].ident.to_string());
        }
        syn::visit::visit_expr_call(self, call);
    }

    fn visit_item(&mut self, item: &'ast Item) {
        if !is_test(item) {
            syn::visit::visit_item(self, item);
        }
    }
}

fn is_test(item: &Item) -> bool {
    let attributes = match item {
        Item::Const(item) => &item.attrs,
        Item::Enum(item) => &item.attrs,
        Item::Fn(item) => &item.attrs,
        Item::Impl(item) => &item.attrs,
        Item::Macro(item) => &item.attrs,
        Item::Mod(item) => &item.attrs,
        Item::Static(item) => &item.attrs,
        Item::Struct(item) => &item.attrs,
        Item::Trait(item) => &item.attrs,
        Item::Type(item) => &item.attrs,
        Item::Use(item) => &item.attrs,
        _ => return false,
    };
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.parse_args::<syn::Path>().is_ok_and(|path| path.is_ident("test"))
    })
}

/// The groups of files that reach each other, each in order of their paths.
fn circles(arrows: &Arrows) -> Vec<Vec<String>> {
    let reached: BTreeMap<_, _> = arrows.keys().map(|from| (from, reach(arrows, from))).collect();
    let mut seen = BTreeSet::new();
    let mut circles = Vec::new();
    for (from, to) in &reached {
        if !to.contains(*from) || !seen.insert((*from).clone()) {
            continue;
        }
        let back = |file: &&String| reached.get(*file).is_some_and(|it| it.contains(*from));
        let circle: Vec<String> = to.iter().filter(back).cloned().collect();
        seen.extend(circle.iter().cloned());
        circles.push(circle);
    }
    circles
}

/// The files that `from` uses, directly or by way of others.
fn reach(arrows: &Arrows, from: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut next = vec![from];
    while let Some(file) = next.pop() {
        for to in arrows.get(file).into_iter().flatten() {
            if reached.insert(to.clone()) {
                next.push(to);
            }
        }
    }
    reached
}

#[cfg(test)]
mod tests;
