#include "lib/text/message_text.h"

#include <string>

#include "google/protobuf/descriptor.h"
#include "lib/base/utf8.h"

namespace baton {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

bool IsValid(const std::string& text, size_t max_bytes) {
  return text.size() <= max_bytes && IsUtf8(text);
}

// `single` and `repeated` are called with a field of one kind, and return false to end the walk.
template <typename Single, typename Repeated>
bool Visit(const Message& message, const FieldDescriptor& field, const Single& single,
           const Repeated& repeated) {
  const Reflection& reflection = *message.GetReflection();
  if (!field.is_repeated()) return !reflection.HasField(message, &field) || single();
  const int size = reflection.FieldSize(message, &field);
  for (int i = 0; i < size; ++i) {
    if (!repeated(i)) return false;
  }
  return true;
}

}  // namespace

bool HasValidText(const Message& message, size_t max_bytes) {
  const Reflection& reflection = *message.GetReflection();
  const auto* descriptor = message.GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor& field = *descriptor->field(i);
    bool valid = true;
    if (field.type() == FieldDescriptor::TYPE_STRING) {
      std::string scratch;
      valid = Visit(
          message, field,
          [&] {
            return IsValid(reflection.GetStringReference(message, &field, &scratch), max_bytes);
          },
          [&](int k) {
            return IsValid(reflection.GetRepeatedStringReference(message, &field, k, &scratch),
                           max_bytes);
          });
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field.is_map()) {
      valid = Visit(
          message, field,
          [&] { return HasValidText(reflection.GetMessage(message, &field), max_bytes); },
          [&](int k) {
            return HasValidText(reflection.GetRepeatedMessage(message, &field, k), max_bytes);
          });
    }
    if (!valid) return false;
  }
  return true;
}

void MakeTextValid(Message* message, size_t max_bytes) {
  const Reflection& reflection = *message->GetReflection();
  const auto* descriptor = message->GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor& field = *descriptor->field(i);
    if (field.type() == FieldDescriptor::TYPE_STRING) {
      Visit(
          *message, field,
          [&] {
            reflection.SetString(message, &field,
                                 ValidUtf8(reflection.GetString(*message, &field), max_bytes));
            return true;
          },
          [&](int k) {
            reflection.SetRepeatedString(
                message, &field, k,
                ValidUtf8(reflection.GetRepeatedString(*message, &field, k), max_bytes));
            return true;
          });
    } else if (field.cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field.is_map()) {
      Visit(
          *message, field,
          [&] {
            MakeTextValid(reflection.MutableMessage(message, &field), max_bytes);
            return true;
          },
          [&](int k) {
            MakeTextValid(reflection.MutableRepeatedMessage(message, &field, k), max_bytes);
            return true;
          });
    }
  }
}

}  // namespace baton
