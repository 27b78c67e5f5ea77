#include "lib/text/message_text.h"

#include <string>

#include "google/protobuf/descriptor.h"
#include "lib/base/utf8.h"

namespace baton {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// Looks at the texts of a message, and mends those that are not valid.
class Walk {
 public:
  explicit Walk(size_t max_bytes) : max_bytes_(max_bytes) {}

  // `mended`: `message` itself. Null: nothing is mended, and the first text that is not valid ends
  // the walk. Returns true if it has reached the end.
  bool Visit(const Message& message, Message* mended) {
    const Reflection& reflection = *message.GetReflection();
    const auto* descriptor = message.GetDescriptor();
    for (int i = 0; i < descriptor->field_count(); ++i) {
      const FieldDescriptor& field = *descriptor->field(i);
      const bool text = field.type() == FieldDescriptor::TYPE_STRING;
      if (!text && (field.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || field.is_map())) {
        continue;
      }
      const int size = field.is_repeated() ? reflection.FieldSize(message, &field)
                                           : reflection.HasField(message, &field);
      for (int k = 0; k < size; ++k) {
        if (!(text ? VisitText(message, field, k, mended) : VisitPart(message, field, k, mended))) {
          return false;
        }
      }
    }
    return true;
  }

 private:
  bool VisitText(const Message& message, const FieldDescriptor& field, int k, Message* mended) {
    const Reflection& reflection = *message.GetReflection();
    std::string scratch;
    const std::string& text =
        field.is_repeated() ? reflection.GetRepeatedStringReference(message, &field, k, &scratch)
                            : reflection.GetStringReference(message, &field, &scratch);
    if (text.size() <= max_bytes_ && IsUtf8(text)) return true;
    if (mended == nullptr) return false;
    if (field.is_repeated()) {
      reflection.SetRepeatedString(mended, &field, k, ValidUtf8(text, max_bytes_));
    } else {
      reflection.SetString(mended, &field, ValidUtf8(text, max_bytes_));
    }
    return true;
  }

  bool VisitPart(const Message& message, const FieldDescriptor& field, int k, Message* mended) {
    const Reflection& reflection = *message.GetReflection();
    if (field.is_repeated()) {
      return Visit(
          reflection.GetRepeatedMessage(message, &field, k),
          mended == nullptr ? nullptr : reflection.MutableRepeatedMessage(mended, &field, k));
    }
    return Visit(reflection.GetMessage(message, &field),
                 mended == nullptr ? nullptr : reflection.MutableMessage(mended, &field));
  }

  const size_t max_bytes_;
};

}  // namespace

bool HasValidText(const Message& message, size_t max_bytes) {
  return Walk(max_bytes).Visit(message, /*mended=*/nullptr);
}

void MakeTextValid(Message* message, size_t max_bytes) { Walk(max_bytes).Visit(*message, message); }

}  // namespace baton
