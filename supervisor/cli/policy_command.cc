#include <iterator>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "google/protobuf/text_format.h"
#include "lib/base/status_macros.h"
#include "supervisor/cli/choose.h"
#include "supervisor/cli/command_options.h"
#include "supervisor/cli/commands.h"
#include "supervisor/cli/session.h"
#include "supervisor/config/policy.h"

namespace baton {
namespace {

constexpr char kFooter[] =
    "Shows the policy as text that --set takes. A new one is in force at once and takes the place "
    "of "
    "the whole; what there is too much of by then stays, and nothing is added to it. When the "
    "driver starts anew, the configuration's is in force again.";
constexpr char kStandardInput[] = "-";

struct Options {
  std::string service;
  std::string file;  // empty: none
  Change change;
};

void Print(Session* session, const std::string& service, const v1::Policy& policy) {
  std::string text;
  google::protobuf::TextFormat::PrintToString(policy, &text);
  session->out << "# policy of service " << service
               << (text.empty() ? ": none, everything up to its capacity" : "") << '\n'
               << text;
}

absl::Status Show(Session* session, Options options) {
  BATON_RETURN_IF_ERROR(ChooseService(session, Purpose::kLook, &options.service));
  BATON_ASSIGN_OR_RETURN(OperatorClient * client, session->Connect());
  v1::GetServiceRequest request;
  request.set_service(options.service);
  BATON_ASSIGN_OR_RETURN(const v1::GetServiceResponse response, client->GetService(request));
  if (session->json) {
    session->PrintJson(response.service().policy());
  } else {
    Print(session, options.service, response.service().policy());
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Policy> Read(Session* session, const std::string& file) {
  if (file != kStandardInput) return LoadPolicy(file);
  const std::string text(std::istreambuf_iterator<char>(session->in), {});
  return ParsePolicy(text, "standard input");
}

absl::Status Replace(Session* session, Options options) {
  BATON_RETURN_IF_ERROR(ChooseService(session, Purpose::kChange, &options.service));
  v1::SetPolicyRequest request;
  request.set_service(options.service);
  BATON_ASSIGN_OR_RETURN(*request.mutable_policy(), Read(session, options.file));
  request.set_validate_only(options.change.dry_run);
  BATON_ASSIGN_OR_RETURN(OperatorClient * client, session->Connect());
  BATON_ASSIGN_OR_RETURN(const v1::SetPolicyResponse response, client->SetPolicy(request));
  if (options.change.dry_run) {
    return PrintPlan(session, absl::StrCat("service ", options.service, " would have this policy"),
                     request);
  }
  if (session->json) {
    session->PrintJson(response);
  } else {
    Print(session, options.service, response.policy());
  }
  return absl::OkStatus();
}

}  // namespace

void AddPolicyCommand(CLI::App* noun, Session* session) {
  CLI::App* command =
      noun->add_subcommand("policy", "Show a service's policy and quotas, or replace them");
  auto options = std::make_shared<Options>();
  command->add_option("service", options->service, kItsService);
  CLI::Option* set =
      command
          ->add_option("--set", options->file, "replace it by this one, in text format; -: stdin")
          ->type_name("FILE");
  AddChangeOptions(command, &options->change, /*asks=*/false, session);
  command->get_option("--dry-run")->needs(set);
  command->footer(kFooter);
  command->callback([session, options] {
    session->action = [session, options] {
      return options->file.empty() ? Show(session, *options) : Replace(session, *options);
    };
  });
}

}  // namespace baton
