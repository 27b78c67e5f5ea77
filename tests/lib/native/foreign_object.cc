// A program of something else.
int main() { return 0; }
