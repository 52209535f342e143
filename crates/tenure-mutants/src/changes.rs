//! The changes of one source file: which there are, and the edits that put each behind a switch.
//!
//! Conditions, guards and predicates are made true and false, comparisons and logical operators are
//! inverted, negations are removed, statements are left out, and functions return a simple value at
//! once. The compiler finds the changes that do not compile, so this file needs no type inference.
//! Tests, constants, code that only the drill uses, and code that only prints are left unchanged.

use std::ops::Range;

use quote::ToTokens;
use syn::parse::{Parse, ParseStream};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    Arm, Attribute, BinOp, Block, Expr, ExprBinary, ExprClosure, ExprMacro, FieldValue, ImplItem,
    ImplItemFn, Item, ItemImpl, ItemTrait, Pat, Signature, Stmt, Token, TraitItemFn, Type, UnOp,
};

use crate::edits::Edit;
use crate::values::instead_of;

/// One change of a file.
#[derive(Debug, Clone)]
pub(crate) struct Change {
    /// The function that contains it, with its type.
    pub(crate) function: String,
    /// Where that function is in the source.
    pub(crate) within: Range<usize>,
    /// A description of the change.
    pub(crate) what: String,
    /// The edits that make it.
    pub(crate) edits: Vec<Edit>,
}

/// All changes of a source text, those of outer expressions before those of inner ones.
pub(crate) fn changes(source: &str) -> syn::Result<Vec<Change>> {
    let file = syn::parse_file(source)?;
    let mut visitor = Visitor {
        source,
        changes: Vec::new(),
        owner: String::new(),
        function: String::new(),
        within: 0..0,
    };
    if !file.attrs.iter().any(is_left_alone) {
        visitor.visit_file(&file);
    }
    Ok(visitor.changes)
}

/// The modules that a file declares in separate files, and which are only for tests or the drill.
pub(crate) fn modules_left_alone(source: &str) -> syn::Result<Vec<String>> {
    let file = syn::parse_file(source)?;
    let modules = file.items.iter().filter_map(|item| match item {
        Item::Mod(module) if module.content.is_none() => Some(module),
        _ => None,
    });
    let alone = modules.filter(|module| module.attrs.iter().any(is_left_alone));
    Ok(alone.map(|module| module.ident.to_string()).collect())
}

/// Whether code with this attribute is left unchanged: it is only for tests or for the drill, or
/// its condition has a `not`.
fn is_left_alone(attribute: &Attribute) -> bool {
    if !attribute.path().is_ident("cfg") {
        return attribute.path().is_ident("test");
    }
    let condition = attribute.to_token_stream().to_string();
    ["test", "drill", "not"].iter().any(|word| {
        condition.split(|c: char| !c.is_alphanumeric() && c != '_').any(|part| part == *word)
    })
}

/// Methods whose closure is a condition.
const PREDICATES: [&str; 17] = [
    "all",
    "any",
    "filter",
    "find",
    "is_none_or",
    "is_ok_and",
    "is_some_and",
    "partition",
    "position",
    "retain",
    "rfind",
    "rposition",
    "skip_while",
    "take_if",
    "take_while",
    "wait_timeout_while",
    "wait_while",
];

struct Visitor<'s> {
    source: &'s str,
    changes: Vec<Change>,
    /// The type or trait whose functions are visited.
    owner: String,
    function: String,
    within: Range<usize>,
}

impl Visitor<'_> {
    fn text(&self, of: &impl Spanned) -> &str {
        self.source.get(of.span().byte_range()).unwrap_or_default()
    }

    fn short(&self, of: &impl Spanned) -> String {
        short(self.text(of))
    }

    fn add(&mut self, what: String, edits: Vec<Edit>) {
        let (function, within) = (self.function.clone(), self.within.clone());
        self.changes.push(Change { function, within, what, edits });
    }

    fn wrap(&mut self, what: String, of: &impl Spanned, open: &str, close: &str) {
        let (open, close) = (open.to_owned(), close.to_owned());
        self.add(what, vec![Edit::Wrap { range: of.span().byte_range(), open, close }]);
    }

    fn make_true(&mut self, condition: &Expr) {
        self.wrap(format!("`{}` is true", self.short(condition)), condition, "(§ || (", "))");
    }

    fn make_false(&mut self, condition: &Expr) {
        self.wrap(format!("`{}` is false", self.short(condition)), condition, "(!§ && (", "))");
    }

    /// Changes the condition of an `if`, a `while` or a guard.
    fn condition(&mut self, condition: &Expr, keyword: &str) {
        if !has_let(condition) {
            if keyword != "while" {
                self.make_true(condition);
            }
            self.make_false(condition);
            return;
        }
        // The condition contains `let`. The switch comes first, so that the first pattern is not
        // evaluated either.
        let what = format!("`{keyword} {}` does not match", self.short(condition));
        self.wrap(what, condition, "!§ && ", "");
    }

    fn statement(&mut self, statement: &Stmt, call: &Expr) {
        if !attributes(call).is_empty() || !is_action(call) {
            return;
        }
        let what = format!("`{}` left out", self.short(statement));
        self.wrap(what, statement, "if !§ { ", " }");
        self.turn_assignment(statement, call);
    }

    /// `+=` and `-=` as statements.
    fn turn_assignment(&mut self, statement: &Stmt, call: &Expr) {
        let Expr::Binary(binary) = call else { return };
        let turned = match binary.op {
            BinOp::AddAssign(_) => "-=",
            BinOp::SubAssign(_) => "+=",
            _ => return,
        };
        let (left, right) = (tokens(&binary.left), tokens(&binary.right));
        let what = format!("{} in `{}`", turned_to(&binary.op, turned), self.short(statement));
        let open = format!("if § {{ {left} {turned} {right}; }} else {{ ");
        self.wrap(what, statement, &open, " }");
    }

    /// Leaves out the action of each arm, in a match that is a statement.
    fn arms(&mut self, arms: &[Arm]) {
        for arm in arms.iter().filter(|arm| !arm.attrs.iter().any(is_left_alone)) {
            if is_action(&arm.body) {
                let what = format!("`{}` left out", self.short(&arm.body));
                self.wrap(what, &*arm.body, "if !§ { ", " }");
            }
        }
    }

    fn body(&mut self, signature: &Signature, block: &Block, visit: impl FnOnce(&mut Self)) {
        if signature.constness.is_some() || signature.unsafety.is_some() {
            return;
        }
        let name = signature.ident.to_string();
        let name = if self.owner.is_empty() { name } else { format!("{}::{name}", self.owner) };
        let outer = (
            std::mem::replace(&mut self.function, name),
            std::mem::replace(&mut self.within, block.span().byte_range()),
        );
        if !block.stmts.is_empty() {
            for value in instead_of(&signature.output) {
                self.return_at_once(block, &value);
            }
            // The function returns unit, so its last match is a statement too.
            if matches!(signature.output, syn::ReturnType::Default)
                && let Some(Stmt::Expr(Expr::Match(last), None)) = block.stmts.last()
            {
                self.arms(&last.arms);
            }
        }
        visit(self);
        (self.function, self.within) = outer;
    }

    fn return_at_once(&mut self, block: &Block, value: &str) {
        // The body is this value already.
        if let [Stmt::Expr(only, None)] = block.stmts.as_slice()
            && tokens(only) == tokens_of(value)
        {
            return;
        }
        let what = if value.is_empty() {
            "returns at once".into()
        } else {
            format!("returns `{value}` at once")
        };
        let at = block.brace_token.span.open().byte_range().end;
        let open = format!(" if § {{ return {value}; }}").replace("return ;", "return;");
        self.add(what, vec![Edit::Wrap { range: at..at, open, close: String::new() }]);
    }

    fn binary(&mut self, binary: &ExprBinary) {
        let operator = binary.op.span().byte_range();
        let replace = |text: &str| Edit::Replace { range: operator.clone(), text: text.into() };
        let whole = binary.span().byte_range();
        let around = |open: &str, close: &str| Edit::Wrap {
            range: whole.clone(),
            open: open.into(),
            close: close.into(),
        };
        let says =
            |turned: &str| format!("{} in `{}`", turned_to(&binary.op, turned), self.short(binary));
        match binary.op {
            BinOp::Eq(_) | BinOp::Ne(_) => {
                let turned = if matches!(binary.op, BinOp::Eq(_)) { "!=" } else { "==" };
                self.add(says(turned), vec![around("((", ") != §)")]);
            }
            BinOp::Lt(_) | BinOp::Le(_) | BinOp::Gt(_) | BinOp::Ge(_) => {
                let (is, turned) = match binary.op {
                    BinOp::Lt(_) => ("<", "<="),
                    BinOp::Le(_) => ("<=", "<"),
                    BinOp::Gt(_) => (">", ">="),
                    _ => (">=", ">"),
                };
                let arm = format!(
                    ")) {{ (left, right) => if § {{ left {turned} right }} else {{ left {is} right }} }})"
                );
                self.add(says(turned), vec![around("(match (&(", &arm), replace("), &(")]);
            }
            BinOp::And(_) => {
                if !has_let(&binary.left) && !has_let(&binary.right) {
                    let edits = vec![around("(if (", " } else { § })"), replace(") != § {")];
                    self.add(says("||"), edits);
                }
                self.operands(binary, Visitor::make_true);
            }
            BinOp::Or(_) => {
                let edits = vec![around("(if (", " } else { !§ })"), replace(") == § {")];
                self.add(says("&&"), edits);
                self.operands(binary, Visitor::make_false);
            }
            BinOp::Add(_) | BinOp::Sub(_) => {
                let turned = if matches!(binary.op, BinOp::Add(_)) { "-" } else { "+" };
                let (left, right) = (tokens(&binary.left), tokens(&binary.right));
                let open = format!("(if § {{ {left} {turned} {right} }} else {{ ");
                self.add(says(turned), vec![around(&open, " })")]);
            }
            _ => {}
        }
    }

    /// Applies `leave_out` to the operands of a chain. An operand with the same operator is part of
    /// the chain, and its own operands are visited instead.
    fn operands(&mut self, binary: &ExprBinary, leave_out: fn(&mut Self, &Expr)) {
        for operand in [&*binary.left, &*binary.right] {
            let is_same = matches!(operand, Expr::Binary(inner)
                if std::mem::discriminant(&inner.op) == std::mem::discriminant(&binary.op));
            if !has_let(operand) && !is_same {
                leave_out(self, operand);
            }
        }
    }

    /// `matches!` with one alternative fewer.
    fn alternatives(&mut self, whole: &ExprMacro, asked: &Matches) {
        let Pat::Or(alternatives) = &asked.pattern else { return };
        let subject = tokens(&asked.subject);
        for alternative in &alternatives.cases {
            let what = format!("`{}` left out of `{}`", self.short(alternative), self.short(whole));
            let close = format!(" && !(§ && matches!({subject}, {})))", tokens(alternative));
            self.wrap(what, whole, "(", &close);
        }
    }

    fn predicate(&mut self, closure: &ExprClosure) {
        if closure.asyncness.is_none() && matches!(closure.output, syn::ReturnType::Default) {
            self.make_true(&closure.body);
            self.make_false(&closure.body);
        }
    }
}

impl<'ast> Visit<'ast> for Visitor<'_> {
    fn visit_item(&mut self, item: &'ast Item) {
        let attributes = match item {
            Item::Fn(it) => &it.attrs,
            Item::Impl(it) => &it.attrs,
            Item::Mod(it) => &it.attrs,
            Item::Trait(it) => &it.attrs,
            // Constants, types and macros have no code that runs here.
            _ => return,
        };
        if attributes.iter().any(is_left_alone) {
            return;
        }
        match item {
            Item::Fn(it) => {
                self.body(&it.sig, &it.block, |this| this.visit_block(&it.block));
            }
            item => visit::visit_item(self, item),
        }
    }

    fn visit_item_impl(&mut self, item: &'ast ItemImpl) {
        let last = |path: &syn::Path| path.segments.last().map(|it| it.ident.to_string());
        let of = item.trait_.as_ref().and_then(|(_, path, _)| last(path));
        if of.is_some_and(|of| of == "Display" || of == "Debug") {
            return;
        }
        let name = match &*item.self_ty {
            Type::Path(path) => last(&path.path).unwrap_or_default(),
            other => short(&tokens(other)),
        };
        let outer = std::mem::replace(&mut self.owner, name);
        visit::visit_item_impl(self, item);
        self.owner = outer;
    }

    fn visit_item_trait(&mut self, item: &'ast ItemTrait) {
        let outer = std::mem::replace(&mut self.owner, item.ident.to_string());
        visit::visit_item_trait(self, item);
        self.owner = outer;
    }

    fn visit_impl_item(&mut self, item: &'ast ImplItem) {
        if let ImplItem::Fn(function) = item
            && !function.attrs.iter().any(is_left_alone)
        {
            self.visit_impl_item_fn(function);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        self.body(&item.sig, &item.block, |this| this.visit_block(&item.block));
    }

    fn visit_trait_item_fn(&mut self, item: &'ast TraitItemFn) {
        if let Some(block) = &item.default
            && !item.attrs.iter().any(is_left_alone)
        {
            self.body(&item.sig, block, |this| this.visit_block(block));
        }
    }

    fn visit_stmt(&mut self, statement: &'ast Stmt) {
        match statement {
            Stmt::Local(local) => {
                if local.attrs.iter().any(is_left_alone) {
                    return;
                }
                // `let _ = …` is there for its action, not for its result.
                if let (Pat::Wild(_), Some(init)) = (&local.pat, &local.init)
                    && init.diverge.is_none()
                {
                    self.statement(statement, &init.expr);
                }
            }
            Stmt::Expr(Expr::Match(it), Some(_)) => self.arms(&it.arms),
            Stmt::Expr(expression, Some(_)) => self.statement(statement, expression),
            Stmt::Expr(..) | Stmt::Macro(_) => {}
            // A function within a function.
            Stmt::Item(item) => return self.visit_item(item),
        }
        visit::visit_stmt(self, statement);
    }

    fn visit_block(&mut self, block: &'ast Block) {
        // Only the last statement of a block can be its value. A match before it is a statement,
        // even without a semicolon.
        if let Some((_, statements)) = block.stmts.split_last() {
            for statement in statements {
                if let Stmt::Expr(Expr::Match(it), None) = statement {
                    self.arms(&it.arms);
                }
            }
        }
        visit::visit_block(self, block);
    }

    fn visit_expr(&mut self, expression: &'ast Expr) {
        if attributes(expression).iter().any(is_left_alone) {
            return;
        }
        match expression {
            Expr::If(it) => self.condition(&it.cond, "if"),
            Expr::While(it) => self.condition(&it.cond, "while"),
            Expr::Binary(it) => self.binary(it),
            Expr::Unary(it) if matches!(it.op, UnOp::Not(_)) => {
                let what = format!("`!` left out of `{}`", self.short(it));
                self.wrap(what, it, "(§ != (", "))");
            }
            Expr::MethodCall(it) if PREDICATES.iter().any(|name| it.method == name) => {
                if let Some(Expr::Closure(closure)) = it.args.last() {
                    self.predicate(closure);
                }
            }
            Expr::Macro(it) if it.mac.path.is_ident("matches") => {
                if let Ok(asked) = it.mac.parse_body::<Matches>() {
                    self.alternatives(it, &asked);
                    self.visit_expr(&asked.subject);
                }
            }
            // The length of an array is a constant.
            Expr::Repeat(it) => return self.visit_expr(&it.expr),
            Expr::Const(_) => return,
            _ => {}
        }
        visit::visit_expr(self, expression);
    }

    fn visit_arm(&mut self, arm: &'ast Arm) {
        if arm.attrs.iter().any(is_left_alone) {
            return;
        }
        if let Some((_, guard)) = &arm.guard {
            self.condition(guard, "if");
        }
        visit::visit_arm(self, arm);
    }

    fn visit_field_value(&mut self, field: &'ast FieldValue) {
        if !field.attrs.iter().any(is_left_alone) {
            visit::visit_field_value(self, field);
        }
    }

    fn visit_pat(&mut self, _: &'ast Pat) {}
    fn visit_type(&mut self, _: &'ast Type) {}
    fn visit_attribute(&mut self, _: &'ast Attribute) {}
    fn visit_path(&mut self, _: &'ast syn::Path) {}
}

/// The arguments of `matches!`.
struct Matches {
    subject: Expr,
    pattern: Pat,
}

impl Parse for Matches {
    fn parse(input: ParseStream<'_>) -> syn::Result<Matches> {
        let subject = input.parse()?;
        input.parse::<Token![,]>()?;
        let pattern = Pat::parse_multi_with_leading_vert(input)?;
        // A guard stays as it is.
        input.parse::<proc_macro2::TokenStream>()?;
        Ok(Matches { subject, pattern })
    }
}

/// Whether an expression is there for its action: a call or an assignment, perhaps with `?` or
/// `.await`.
fn is_action(expression: &Expr) -> bool {
    match expression {
        Expr::Try(it) => is_action(&it.expr),
        Expr::Await(it) => is_action(&it.base),
        Expr::Call(_) | Expr::MethodCall(_) | Expr::Assign(_) => true,
        Expr::Binary(it) => is_compound(&it.op),
        _ => false,
    }
}

fn is_compound(operator: &BinOp) -> bool {
    tokens(operator).ends_with('=')
        && !matches!(operator, BinOp::Eq(_) | BinOp::Ne(_) | BinOp::Le(_) | BinOp::Ge(_))
}

/// Whether a condition contains `let`. Then it is a chain, whose parts cannot be grouped in
/// brackets.
fn has_let(condition: &Expr) -> bool {
    match condition {
        Expr::Let(_) => true,
        Expr::Binary(it) => has_let(&it.left) || has_let(&it.right),
        _ => false,
    }
}

fn attributes(expression: &Expr) -> &[Attribute] {
    match expression {
        Expr::Assign(it) => &it.attrs,
        Expr::Await(it) => &it.attrs,
        Expr::Binary(it) => &it.attrs,
        Expr::Block(it) => &it.attrs,
        Expr::Call(it) => &it.attrs,
        Expr::ForLoop(it) => &it.attrs,
        Expr::If(it) => &it.attrs,
        Expr::Loop(it) => &it.attrs,
        Expr::Match(it) => &it.attrs,
        Expr::MethodCall(it) => &it.attrs,
        Expr::Return(it) => &it.attrs,
        Expr::Try(it) => &it.attrs,
        Expr::Unary(it) => &it.attrs,
        Expr::While(it) => &it.attrs,
        _ => &[],
    }
}

/// The text of a syntax node on one line, without its comments.
fn tokens(of: &impl ToTokens) -> String {
    of.to_token_stream().to_string()
}

fn tokens_of(text: &str) -> String {
    text.parse::<proc_macro2::TokenStream>().map(|it| it.to_string()).unwrap_or_default()
}

fn turned_to(operator: &BinOp, turned: &str) -> String {
    format!("`{}` turned to {turned}", tokens(operator))
}

/// The most text around a change that is used in its name.
const SHORT: usize = 70;

/// A text on one line, without its comments, and shortened.
fn short(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
    let words: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    let line = words.join(" ").replace('`', "'");
    if line.chars().count() <= SHORT {
        return line;
    }
    line.chars().take(SHORT - 1).chain(['…']).collect()
}

#[cfg(test)]
mod tests;
