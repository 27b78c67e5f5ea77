#include "tests/harness/json_object.h"

#include <google/protobuf/struct.pb.h>
#include <google/protobuf/util/json_util.h>

#include "absl/strings/str_cat.h"

namespace baton::harness {
namespace {

const google::protobuf::Value* Lookup(const google::protobuf::Struct& object,
                                      const std::string& path) {
  const size_t dot = path.find('.');
  const auto found = object.fields().find(path.substr(0, dot));
  if (found == object.fields().end()) return nullptr;
  if (dot == std::string::npos) return &found->second;
  if (!found->second.has_struct_value()) return nullptr;
  return Lookup(found->second.struct_value(), path.substr(dot + 1));
}

}  // namespace

absl::StatusOr<JsonObject> JsonObject::Parse(const std::string& text) {
  auto object = std::make_shared<google::protobuf::Struct>();
  const auto status = google::protobuf::util::JsonStringToMessage(text, object.get());
  if (!status.ok()) return absl::InvalidArgumentError(absl::StrCat("not a JSON object: ", text));
  JsonObject json;
  json.object_ = std::move(object);
  json.text_ = text;
  return json;
}

bool JsonObject::Has(const std::string& path) const { return Lookup(*object_, path) != nullptr; }

double JsonObject::Number(const std::string& path) const {
  const google::protobuf::Value* value = Lookup(*object_, path);
  return value == nullptr ? 0 : value->number_value();
}

bool JsonObject::Flag(const std::string& path) const {
  const google::protobuf::Value* value = Lookup(*object_, path);
  return value != nullptr && value->bool_value();
}

}  // namespace baton::harness
