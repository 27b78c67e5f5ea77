#include "supervisor/cli/man_page.h"

#include <iterator>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "lib/base/version.h"
#include "supervisor/cli/description.h"

namespace baton {
namespace {

constexpr char kDate[] = "2026-11-21";  // of the last change to these texts

constexpr char kRules[] = R"(Commands are a noun and a verb.
The nouns are
.BR service ", " worker ", " shard " and " connection ;
each has
.B list
and
.BR describe ,
and what is done to one of them:
.BR "worker stop" .
What is done to a service stands by itself:
.BR handoff ", " upgrade ", " rollback .
So do its histories,
.BR upgrades " and " events ,
and what is about the machine:
.BR status ", " version ", " doctor ", " top .
.PP
Where there is one service, its name may be left out, also before the number of a shard, a worker or
a connection:
.BR "shard describe 0" .
What changes something then says on standard error which service it took.
.B drain
always needs the name, or
.BR \-\-all .
.PP
Where something is listed, options choose what:
.BR \-\-service ", " \-\-shard ", " \-\-owner ", " \-\-state " and " \-\-kind .
.B \-\-watch
looks again and again, at the same place of a terminal, and waits for a control that is
restarted; SIGINT ends it with exit status 0.
.B events
has
.B \-\-follow
instead: it tells each event once.
.PP
What changes something has
.BR \-\-dry\-run ,
which looks everything up, fails as the change would as far as that can be known before, and
changes nothing.
With
.B "\-o json"
it prints the request that would be sent.
.B worker stop
and
.B worker kill
ask at a terminal, and are refused where there is none, unless
.B \-\-yes
is given; the others ask nothing.
.PP
Data goes to standard output, messages to standard error.
What takes longer than a second says there what it waits for: on a terminal in a line that is
written anew, elsewhere in lines, and not at all with
.BR "\-o json" .
Only a terminal gets colours, wrapped lines and, after a change, what one may do next.
JSON is an object with the fields of proto/baton/v1 under their names there, 64\-bit numbers as
strings.
.B \-o wide
is
.B \-o table
with more columns, where there are more, and with all work requests of
.BR "shard describe" .
)";

constexpr const char* kExitStatuses[] = {
    "Done.",
    "The request was refused, or failed.",
    "Bad usage, or a question was not answered with yes.",
    "Baton cannot be reached: batond, or the keeper of the service.",
    "What was named is not there.",
    "The caller is not permitted to operate Baton.",
    "There was no answer in time.",
};

constexpr char kSurroundings[] = R"(.SH ENVIRONMENT
.TP
.B BATON_SOCKET
The operators' socket, where neither
.B \-\-socket
nor
.B \-\-state\-dir
is given.
.TP
.B TRACEPARENT
Of W3C's Trace Context: the trace and the step of it that this command belongs to.
Baton's log has it beside what the command changes.
.TP
.B NO_COLOR
When it is not empty, there are no colours.
Terminals whose TERM is
.I dumb
get no escape sequences at all.
.TP
.B XDG_RUNTIME_DIR
Where the state directory of batond is looked for, as
.IR baton ,
when it is not root's.
.SH FILES
.TP
.I /run/baton/operator.sock
The operators' socket of root's batond.
)";

// Escapes text, so that it is no request and no escape sequence, and has dashes as they are typed.
std::string Escaped(const std::string& text) {
  std::string escaped = absl::StrReplaceAll(text, {{"\\", "\\e"}, {"-", "\\-"}, {"\n", " "}});
  if (escaped.starts_with(".") || escaped.starts_with("'")) escaped = "\\&" + escaped;
  return escaped;
}

// Returns the text as an argument of a macro.
std::string RoffQuoted(const std::string& text) {
  return absl::StrCat("\"", absl::StrReplaceAll(Escaped(text), {{"\"", "\\(dq"}}), "\"");
}

// Returns each sentence on a line of its own, as roff likes it.
std::string Sentences(std::string text) {
  absl::StrReplaceAll({{".\n", ". "}, {"\n", " "}}, &text);
  if (!text.ends_with(".")) text += '.';
  std::string lines;
  const std::vector<std::string> sentences = absl::StrSplit(text, ". ", absl::SkipEmpty());
  for (const std::string& sentence : sentences) {
    absl::StrAppend(&lines, Escaped(sentence), sentence.ends_with(".") ? "\n" : ".\n");
  }
  return lines;
}

// "baton-service"
std::string PageName(const CLI::App& command) {
  return absl::StrReplaceAll(PathOf(command), {{" ", "-"}});
}

std::string Entry(const std::string& label, const std::string& description) {
  return absl::StrCat(".TP\n.B ", RoffQuoted(label), "\n", Sentences(description));
}

std::string Entries(const CLI::App& command) {
  std::string text;
  for (const CLI::Option* one : PositionalsOf(command)) {
    absl::StrAppend(&text, Entry(NameOf(*one), DescriptionOf(*one)));
  }
  for (const CLI::Option* one : OptionsOf(command)) {
    const std::string description = DescriptionOf(*one);
    absl::StrAppend(&text,
                    Entry(LabelOf(*one), description.empty() ? "print the release" : description));
  }
  return text;
}

std::string ExitStatus() {
  std::string text = ".SH EXIT STATUS\n";
  for (size_t i = 0; i < std::size(kExitStatuses); ++i) {
    absl::StrAppend(&text, ".TP\n.B ", i, "\n", kExitStatuses[i], "\n");
  }
  return text;
}

std::string Head(const CLI::App& command) {
  const std::string name = PageName(command);
  return absl::StrCat(".\\\" Made from the description of the command line.\n.TH ",
                      Escaped(absl::AsciiStrToUpper(name)), " 1 ", kDate, " \"Baton ", kRelease,
                      "\" \"Baton\"\n.SH NAME\n", Escaped(name), " \\- ",
                      Escaped(InShort(command.get_description())), "\n");
}

std::string Synopsis(const std::vector<const CLI::App*>& commands) {
  std::string text = ".SH SYNOPSIS\n";
  for (const CLI::App* command : commands) {
    absl::StrAppend(&text, command == commands.front() ? "" : ".br\n", Escaped(UsageOf(*command)),
                    "\n");
  }
  return text;
}

std::string Prose(const CLI::App& command) {
  std::string text = Sentences(command.get_description());
  if (!command.get_footer().empty()) {
    absl::StrAppend(&text, ".PP\n", Sentences(command.get_footer()));
  }
  return text;
}

std::string SeeAlso(const std::vector<std::string>& pages) {
  return absl::StrCat(".SH SEE ALSO\n",
                      absl::StrJoin(pages, ",\n",
                                    [](std::string* text, const std::string& page) {
                                      absl::StrAppend(text, ".BR ", Escaped(page), " (1)");
                                    }),
                      "\n");
}

std::string PageOf(const CLI::App& command) {
  const std::vector<const CLI::App*> verbs = SubcommandsOf(command);
  std::string text = Head(command);
  if (verbs.empty()) {
    const std::string entries = Entries(command);
    absl::StrAppend(&text, Synopsis({&command}), ".SH DESCRIPTION\n", Prose(command),
                    ".SH OPTIONS\n", entries, entries.empty() ? "" : ".PP\n");
  } else {
    absl::StrAppend(&text, Synopsis(verbs), ".SH DESCRIPTION\n", Prose(command), ".SH COMMANDS\n");
    for (const CLI::App* verb : verbs) {
      absl::StrAppend(&text, ".SS ", RoffQuoted(PathOf(*verb)), "\n", Prose(*verb), Entries(*verb));
    }
  }
  absl::StrAppend(&text, verbs.empty() ? "" : ".SH OPTIONS\n",
                  "The options of every command are described in\n.BR baton (1).\n", ExitStatus(),
                  SeeAlso({"baton"}));
  return text;
}

std::string OverviewOf(const CLI::App& root) {
  std::string text = absl::StrCat(Head(root), Synopsis({&root}), ".SH DESCRIPTION\n", Prose(root),
                                  ".PP\n", kRules, ".SH COMMANDS\n");
  std::vector<std::string> pages;
  for (const CLI::App* one : SubcommandsOf(root)) {
    pages.push_back(PageName(*one));
    std::string label = PathOf(*one);
    std::vector<std::string> verbs;
    for (const CLI::App* verb : SubcommandsOf(*one)) verbs.push_back(verb->get_name());
    if (!verbs.empty()) absl::StrAppend(&label, " ", absl::StrJoin(verbs, "|"));
    absl::StrAppend(&text, Entry(label, one->get_description()));
  }
  absl::StrAppend(&text, ".SH OPTIONS\n", Entries(root), ExitStatus(), kSurroundings,
                  SeeAlso(pages));
  return text;
}

}  // namespace

std::vector<ManPage> MakeManPages(const CLI::App& root) {
  std::vector<ManPage> pages = {{PageName(root) + ".1", OverviewOf(root)}};
  for (const CLI::App* command : SubcommandsOf(root)) {
    pages.push_back({PageName(*command) + ".1", PageOf(*command)});
  }
  return pages;
}

}  // namespace baton
