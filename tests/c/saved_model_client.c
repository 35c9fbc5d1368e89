/* Runs a SavedModel through TensorFlow's C library, without Python: the way in that TF Serving uses.

     saved_model_client MODEL_DIR REQUESTS ANSWERS [OP_LIBRARY...]

   Runs each request once and writes what came back, errors too.

   Files hold numbers of 64 bits in the machine's order and texts (their length, then their bytes):
     REQUESTS            number of requests, requests
     request             number of inputs, inputs; number of outputs, their names (texts)
     ANSWERS             number of answers, answers
     answer              TF_Code; its message (text); number of tensors, tensors in the order of the request's outputs
     tensor              name (text); TF_DataType; rank; sizes; then for TF_STRING a text for each element, and for any
                         other type one text with all bytes
   A name is that of a tensor in the graph, "operation:number". tests/test_c_api.py writes and reads these files. */

#define _GNU_SOURCE
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tensorflow/c/c_api.h>

enum { MAX_RANK = 8 };

typedef struct {
    char *bytes;
    int64_t length;
} Text;

typedef struct {
    Text name;
    TF_DataType type;
    int rank;
    int64_t sizes[MAX_RANK];
    int64_t elements;
    Text *texts; /* one for each element of a TF_STRING, else a single one with all bytes */
} Array;

typedef struct {
    int64_t inputs, outputs;
    Array *arrays;
    TF_Output *feeds, *fetches;
    Text *names; /* of the outputs */
} Request;

static void die(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vfprintf(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    exit(2);
}

static void *allocate(int64_t count, size_t size) {
    void *memory = calloc(count > 0 ? (size_t)count : 1, size);
    if (!memory) die("out of memory");
    return memory;
}

static FILE *open_file(const char *path, const char *mode) {
    FILE *file = fopen(path, mode);
    if (!file) die("cannot open %s", path);
    return file;
}

/* Reading the files. */

static int64_t read_number(FILE *file) {
    int64_t number;
    if (fread(&number, sizeof number, 1, file) != 1) die("a file ends too early");
    return number;
}

static Text read_text(FILE *file) {
    Text text = {NULL, read_number(file)};
    text.bytes = allocate(text.length + 1, 1); /* a zero behind it, for names */
    if (fread(text.bytes, 1, (size_t)text.length, file) != (size_t)text.length) die("a file ends too early");
    return text;
}

static Array read_array(FILE *file) {
    Array array = {.name = read_text(file), .elements = 1};
    array.type = (TF_DataType)read_number(file);
    array.rank = (int)read_number(file);
    if (array.rank > MAX_RANK) die("rank %d is too much", array.rank);
    for (int i = 0; i < array.rank; i++) array.elements *= array.sizes[i] = read_number(file);
    int64_t texts = array.type == TF_STRING ? array.elements : 1;
    array.texts = allocate(texts, sizeof *array.texts);
    for (int64_t i = 0; i < texts; i++) array.texts[i] = read_text(file);
    return array;
}

static TF_Output find_tensor(TF_Graph *graph, const Text *name) {
    char *colon = strrchr(name->bytes, ':');
    if (!colon) die("%s is not the name of a tensor", name->bytes);
    *colon = '\0';
    TF_Output output = {TF_GraphOperationByName(graph, name->bytes), atoi(colon + 1)};
    *colon = ':';
    if (!output.oper) die("the model has no tensor %s", name->bytes);
    return output;
}

static Request read_request(FILE *file, TF_Graph *graph) {
    Request request = {.inputs = read_number(file)};
    request.arrays = allocate(request.inputs, sizeof *request.arrays);
    request.feeds = allocate(request.inputs, sizeof *request.feeds);
    for (int64_t i = 0; i < request.inputs; i++) {
        request.arrays[i] = read_array(file);
        request.feeds[i] = find_tensor(graph, &request.arrays[i].name);
    }
    request.outputs = read_number(file);
    request.names = allocate(request.outputs, sizeof *request.names);
    request.fetches = allocate(request.outputs, sizeof *request.fetches);
    for (int64_t i = 0; i < request.outputs; i++) {
        request.names[i] = read_text(file);
        request.fetches[i] = find_tensor(graph, &request.names[i]);
    }
    return request;
}

static Request *read_requests(const char *path, TF_Graph *graph, int64_t *count) {
    FILE *file = open_file(path, "rb");
    *count = read_number(file);
    Request *requests = allocate(*count, sizeof *requests);
    for (int64_t i = 0; i < *count; i++) requests[i] = read_request(file, graph);
    fclose(file);
    return requests;
}

/* Tensors. */

/* TensorFlow calls this when nobody uses the tensor any more, which may be later than TF_DeleteTensor: an output can
   share the memory of an input. */
static void free_strings(void *data, size_t length, void *unused) {
    (void)unused;
    TF_TString *strings = data;
    for (size_t i = 0; i < length / sizeof *strings; i++) TF_StringDealloc(&strings[i]);
    free(data);
}

static TF_Tensor *string_tensor(const Array *array) {
    TF_TString *strings = allocate(array->elements, sizeof *strings);
    for (int64_t i = 0; i < array->elements; i++) {
        TF_StringInit(&strings[i]);
        TF_StringCopy(&strings[i], array->texts[i].bytes, (size_t)array->texts[i].length);
    }
    size_t length = (size_t)array->elements * sizeof *strings;
    return TF_NewTensor(TF_STRING, array->sizes, array->rank, strings, length, free_strings, NULL);
}

static TF_Tensor *new_tensor(const Array *array) {
    TF_Tensor *tensor;
    if (array->type == TF_STRING) {
        tensor = string_tensor(array);
    } else {
        size_t length = (size_t)array->texts[0].length;
        tensor = TF_AllocateTensor(array->type, array->sizes, array->rank, length);
        if (tensor && length) memcpy(TF_TensorData(tensor), array->texts[0].bytes, length);
    }
    if (!tensor) die("no tensor could be made for %s", array->name.bytes);
    return tensor;
}

/* The answer is `outputs`; what is in it belongs to the caller, who calls TF_DeleteTensor. TensorFlow itself takes the
   strings of an output down. */
static void run(TF_Session *session, const Request *request, TF_Tensor **outputs, TF_Status *status) {
    TF_Tensor **inputs = allocate(request->inputs, sizeof *inputs);
    for (int64_t i = 0; i < request->inputs; i++) inputs[i] = new_tensor(&request->arrays[i]);
    memset(outputs, 0, (size_t)request->outputs * sizeof *outputs);
    TF_SessionRun(session, NULL, request->feeds, inputs, (int)request->inputs, request->fetches, outputs,
                  (int)request->outputs, NULL, 0, NULL, status);
    for (int64_t i = 0; i < request->inputs; i++) TF_DeleteTensor(inputs[i]);
    free(inputs);
}

static void delete_tensors(TF_Tensor **tensors, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        if (tensors[i]) TF_DeleteTensor(tensors[i]);
}

/* The mode `answer`. */

static void write_number(FILE *file, int64_t number) { fwrite(&number, sizeof number, 1, file); }

static void write_text(FILE *file, const char *bytes, size_t length) {
    write_number(file, (int64_t)length);
    fwrite(bytes, 1, length, file);
}

static void write_tensor(FILE *file, const Text *name, const TF_Tensor *tensor) {
    write_text(file, name->bytes, (size_t)name->length);
    write_number(file, TF_TensorType(tensor));
    write_number(file, TF_NumDims(tensor));
    for (int i = 0; i < TF_NumDims(tensor); i++) write_number(file, TF_Dim(tensor, i));
    if (TF_TensorType(tensor) != TF_STRING) {
        write_text(file, TF_TensorData(tensor), TF_TensorByteSize(tensor));
        return;
    }
    const TF_TString *strings = TF_TensorData(tensor);
    for (int64_t i = 0; i < TF_TensorElementCount(tensor); i++)
        write_text(file, TF_StringGetDataPointer(&strings[i]), TF_StringGetSize(&strings[i]));
}

static void answer_all(TF_Session *session, const Request *requests, int64_t count, const char *path) {
    FILE *file = open_file(path, "wb");
    TF_Status *status = TF_NewStatus();
    write_number(file, count);
    for (int64_t i = 0; i < count; i++) {
        TF_Tensor **outputs = allocate(requests[i].outputs, sizeof *outputs);
        run(session, &requests[i], outputs, status);
        int ok = TF_GetCode(status) == TF_OK;
        if (!ok) printf("request %d: code %d: %s\n", (int)i, TF_GetCode(status), TF_Message(status));
        write_number(file, TF_GetCode(status));
        write_text(file, TF_Message(status), strlen(TF_Message(status)));
        write_number(file, ok ? requests[i].outputs : 0);
        for (int64_t j = 0; ok && j < requests[i].outputs; j++)
            write_tensor(file, &requests[i].names[j], outputs[j]);
        delete_tensors(outputs, requests[i].outputs);
        free(outputs);
    }
    TF_DeleteStatus(status);
    if (fclose(file)) die("cannot write %s", path);
}

/* Loading. */

static void check(const TF_Status *status, const char *what) {
    if (TF_GetCode(status) != TF_OK) die("%s: code %d: %s", what, TF_GetCode(status), TF_Message(status));
}

static TF_Session *load(const char *directory, TF_Graph *graph, char **libraries, int count) {
    TF_Status *status = TF_NewStatus();
    for (int i = 0; i < count; i++) {
        TF_Library *library = TF_LoadLibrary(libraries[i], status);
        check(status, libraries[i]);
        TF_DeleteLibraryHandle(library); /* the handle only, the operations stay */
    }
    const char *tags[] = {"serve"};
    TF_SessionOptions *options = TF_NewSessionOptions();
    TF_Session *session = TF_LoadSessionFromSavedModel(options, NULL, directory, tags, 1, graph, NULL, status);
    check(status, directory);
    TF_DeleteSessionOptions(options);
    TF_DeleteStatus(status);
    return session;
}

int main(int argc, char **argv) {
    if (argc < 4) die("wrong arguments; see the top of the source");
    TF_Graph *graph = TF_NewGraph();
    TF_Session *session = load(argv[1], graph, argv + 4, argc - 4);
    int64_t count;
    Request *requests = read_requests(argv[2], graph, &count);
    answer_all(session, requests, count, argv[3]);
    TF_Status *status = TF_NewStatus();
    TF_CloseSession(session, status);
    TF_DeleteSession(session, status);
    TF_DeleteStatus(status);
    TF_DeleteGraph(graph);
    return 0;
}
